"""Writes a network as an ONNX file.

Uses torch's TorchScript exporter: it needs no further package and writes one node per layer. Batch
norms are kept, so that the file is the network as written. The same seed gives the same bytes.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor

from benchmarks.networks.network import Network

OPSET = 17

TRACED_BATCH = 2
"""Rows of the traced inputs: with one row an exporter takes a broadcast for a fixed dimension."""


def write_onnx(network: Network, path: Path, *, seed: int = 0) -> Path:
    """Write ``network`` to ``path``, replacing the file in one step, and return ``path``.

    Dimension 0 of every input and output is the symbol "batch". One file, no external data.
    """
    model = network.build(seed)
    inputs = network.example_inputs(TRACED_BATCH)
    names = (*network.input_names, *network.output_names)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with warnings.catch_warnings():
            # The exporter calls itself legacy, and warns that shapes checked in Python are fixed.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                inputs,
                temporary,
                dynamo=False,
                opset_version=OPSET,
                training=torch.onnx.TrainingMode.PRESERVE,  # eval mode, batch norms not folded
                input_names=list(network.input_names),
                output_names=list(network.output_names),
                dynamic_axes={value: {0: "batch"} for value in names},
            )
        _declare_outputs(Path(temporary), model(*inputs))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _declare_outputs(path: Path, outputs: Tensor | tuple[Tensor, ...]) -> None:
    """Give the outputs their known extents, where the exporter's shape inference lost them."""
    model = onnx.load(path)
    is_lost = False
    together = outputs if isinstance(outputs, tuple) else (outputs,)
    for declared, output in zip(model.graph.output, together, strict=True):
        dims = declared.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if axis > 0 and dim.dim_param:
                dim.dim_value = output.shape[axis]
                is_lost = True
    if is_lost:
        path.write_bytes(model.SerializeToString(deterministic=True))
