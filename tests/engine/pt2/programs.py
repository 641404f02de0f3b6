"""Programs as torch.export saves them, and what Braid makes of them."""

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from braid.core.graph import OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.ops.dtypes import spec_of
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import interpret, specialise

Tensors = Sequence[Tensor]


class Several(nn.Module):
    """Many functions of the same inputs, so that one export covers them all."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: Tensor) -> dict[str, Any]:
        return {name: function(*inputs) for name, function in self.functions.items()}


def save(module: nn.Module, inputs: Tensors, path: Path, open_batch: bool = True) -> Path:
    """Export with torch.export and save; dimension 0 of every input stays open."""
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    shapes: Any = tuple({0: batch} for _ in inputs) if open_batch else None
    if shapes and isinstance(module, Several):
        shapes = (shapes,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), tuple(inputs), dynamic_shapes=shapes)
        torch.export.save(program, path)
    return path


def imported(path: Path) -> tuple[OpGraph, dict[str, Tensor]]:
    with tempfile.TemporaryDirectory() as work:
        template, weights, _ = open_upload(path, Path(work)).lowered()
    return run_passes(template, weights)


def static_graph(path: Path, batch: int) -> tuple[OpGraph, dict[str, Tensor]]:
    """The static graph at a batch size; its operators are the schedule units."""
    template, weights = imported(path)
    specs = {
        name: TensorType(spec.dtype, (batch, *spec.shape[1:]))
        for name, spec in template.inputs.items()
    }
    return specialise(template, weights, specs)


def run(template: OpGraph, weights: Mapping[str, Tensor], inputs: Tensors) -> dict[str, Tensor]:
    named = dict(zip(template.inputs, inputs, strict=True))
    specs = {name: spec_of(tensor) for name, tensor in named.items()}
    return interpret(*specialise(template, weights, specs), named)
