"""A torch module as a file that an importer takes, with the batch open where the module allows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest

TRACED_ROWS = 2
"""Rows to trace with: torch.export takes a single row for a constant."""


def export_module(module: torch.nn.Module, example_inputs: Any, path: Path) -> Path:
    """Write a module as ``torch.export`` saves it, in evaluation mode; returns ``path``.

    Raises:
        InvalidRequest: there are no example inputs, or torch cannot export the module with them.
    """
    inputs = _example_tensors(example_inputs)
    with _evaluating(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(_exported(module, inputs), path)
    return path


def _example_tensors(example_inputs: Any) -> tuple[Tensor, ...]:
    given = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    if not isinstance(given, tuple | list) or not given:
        raise InvalidRequest("give example_inputs for a torch module: a tensor or a tuple of them")
    if not all(isinstance(tensor, Tensor) for tensor in given):
        raise InvalidRequest("example_inputs of a torch module are tensors, nothing else")
    return tuple(given)


def _exported(module: torch.nn.Module, inputs: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Export with dimension 0 of all inputs as the batch; as the example is, if that fails."""
    if all(tensor.dim() for tensor in inputs) and len({tensor.shape[0] for tensor in inputs}) == 1:
        rows = tuple(torch.cat([tensor[:1]] * TRACED_ROWS) for tensor in inputs)
        batch = torch.export.Dim("batch")
        try:
            return torch.export.export(
                module, rows, dynamic_shapes=tuple({0: batch} for _ in inputs)
            )
        except Exception as error:  # torch has dozens of kinds
            reason: Exception = error
    try:
        return torch.export.export(module, tuple(inputs))
    except Exception as error:
        reason = error
    line = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
    raise InvalidRequest(f"torch cannot export this module: {line}") from reason


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module and all its parts into evaluation mode inside the context."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, was_training in before:
            part.training = was_training
