"""Reference for a ``.pt2``: its own nodes, one by one, by the aten operators they name.

Shares neither lowering nor passes with the import it checks, and changes in place what the program
changes in place. Only operators of the allow-list are ever called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from braid.core.errors import ModelImportError
from braid.engine.importer.sandbox.run_limit import trial
from braid.engine.importer.verification.reference import NO_WORDS, ReferenceFailed, Words
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.document import (
    Argument,
    Dtype,
    ExportedProgram,
    OperatorCall,
    Setting,
    Symbol,
    Tensor,
)
from braid.engine.pt2.families.symbols import DROPPED
from braid.engine.pt2.lowering import covered
from braid.engine.runtime.memory import raise_out_of_memory

_PYTHON: Mapping[str, Callable[..., Any]] = {
    **{f"_operator.{n}": getattr(operator, n) for n in ("add", "sub", "mul", "floordiv", "mod")},
    **{f"_operator.{n}": getattr(operator, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    "_operator.neg": operator.neg,
    "_operator.and_": operator.and_,
    "torch.sym_max": max,
    "torch.sym_min": min,
}


class EagerReference:
    """Exported program run node by node by torch."""

    file: Path | None = None  # nothing for ONNX Runtime
    words: Words = NO_WORDS

    def __init__(self, program: ExportedProgram, weights: Mapping[str, torch.Tensor]) -> None:
        self.name = f"torch {torch.__version__} eager"
        self._program = program
        self._weights = weights

    @trial()
    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        values: dict[str, Any] = {name: tensor.clone() for name, tensor in inputs.items()}
        values |= self._weights
        last = _last_reads(self._program)
        with torch.inference_mode():
            for index, call in enumerate(self._program.calls):
                if call.target not in DROPPED:
                    self._step(call, values)
                for name in last.get(index, ()):
                    values.pop(name, None)
        return {
            key: values[name].contiguous().clone() for key, name in self._program.outputs.items()
        }

    def reordered(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Refuse: torch has no second way to compute the same."""
        raise ReferenceFailed("it computes in one way only")

    def _step(self, call: OperatorCall, values: dict[str, Any]) -> None:
        try:
            result = _run(call, values)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            raise_out_of_memory(error)
            first = str(error).strip().partition("\n")[0][:300]
            raise ReferenceFailed(f"{call.target}: {first}") from error
        results = result if len(call.outputs) > 1 else [result]
        for output, value in zip(call.outputs, results, strict=False):
            if isinstance(output, list):
                for part, item in zip(output, value, strict=False):
                    if isinstance(part, Tensor):
                        values[part.name] = item
            elif isinstance(output, Tensor | Symbol):
                values[output.name] = value


def _run(call: OperatorCall, values: Mapping[str, Any]) -> Any:
    if covered(call.target) is None:
        raise ModelImportError(f"{call.target} is not in the allow-list")
    if call.target in _PYTHON:
        return _PYTHON[call.target](*(_value(a, values) for a in call.arguments.values()))
    space, name, overload = call.target.split(".")
    assert space == "aten"
    function = getattr(getattr(torch.ops.aten, name), overload)
    given = {key: a for key, a in call.arguments.items() if not _left_out(a)}
    return function(**{key: _value(argument, values) for key, argument in given.items()})


def _left_out(argument: Argument) -> bool:
    """True for layouts and memory formats, which do not change results."""
    return isinstance(argument, Setting) and argument.what != "as_device"


def _value(argument: Argument, values: Mapping[str, Any]) -> Any:
    match argument:
        case Tensor(name) | Symbol(name):
            return values[name]
        case Dtype(name):
            return torch_dtype(name)
        case Setting():
            return torch.device("cpu")
        case list():
            return [_value(item, values) for item in argument]
    return argument


def _last_reads(program: ExportedProgram) -> dict[int, list[str]]:
    """Index of a call -> tensors that no later call reads. A view keeps its tensor alive."""
    last: dict[str, int] = {}

    def note(argument: Argument, index: int) -> None:
        if isinstance(argument, Tensor | Symbol):
            last[argument.name] = index
        elif isinstance(argument, list):
            for item in argument:
                note(item, index)

    for index, call in enumerate(program.calls):
        for argument in (*call.outputs, *call.arguments.values()):
            note(argument, index)
    kept = {*program.outputs.values(), *program.weights}
    ends: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in kept:
            ends.setdefault(index, []).append(name)
    return ends
