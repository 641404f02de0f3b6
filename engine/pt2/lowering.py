"""From an exported program to a template graph, node by node through the allow-list.

    ExportedProgram + weights ──lower──> OpGraph (template) + constants
                          └── braid.engine.pt2.families: one function an aten operator

The same builder, kinds and passes as for ONNX, so that one network uploaded in both formats gives
one set of schedule units. All that is not covered is named at once.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import torch

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.graph import OpGraph
from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.lowering.finish import finish
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.current_values import CurrentValues
from braid.engine.pt2.document import Argument, ExportedProgram, OperatorCall, Symbol, Tensor
from braid.engine.pt2.families import TABLE
from braid.engine.pt2.families.symbols import DROPPED
from braid.engine.pt2.lowering_table import Lower, functional


def lower(
    program: ExportedProgram, weights: Mapping[str, torch.Tensor], name: str = "model"
) -> tuple[OpGraph, dict[str, torch.Tensor]]:
    """Return the template graph of a program, and its constants by value name.

    Raises:
        UnsupportedOperators: naming every call that the allow-list does not cover.
        ModelImportError: the graph is malformed.
    """
    return _Lowering(program).run(weights, name)


def covered(target: str) -> Lower | None:
    """Return the lowering function for a target, in-place forms included; None if there is none."""
    return TABLE.get(target) or TABLE.get(functional(target))


class _Lowering:
    """State of the lowering of one program."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._reads = _reads(program)
        self._builder = Builder(self._reads)
        self._values = CurrentValues(self._builder, self._relowered)
        self._reasons: list[str] = []
        self._again = 0

    def run(
        self, weights: Mapping[str, torch.Tensor], name: str
    ) -> tuple[OpGraph, dict[str, torch.Tensor]]:
        program, builder = self._program, self._builder
        for tensor in program.inputs:
            self._values.define(tensor, builder.define(tensor))
        for tensor, content in weights.items():
            builder.define_constant(tensor, content)
            self._values.define(tensor, builder.resolve(tensor) or tensor, weight=True)
        for call in program.calls:
            if call.target not in DROPPED:
                self._call(call)
        if self._reasons:
            raise UnsupportedOperators(tuple(self._reasons))
        try:
            outputs = {key: self._values.read(value) for key, value in program.outputs.items()}
        except UnsupportedUse as error:
            raise ModelImportError(f"an output of the .pt2: {error}") from error
        return finish(builder, name, program.inputs, outputs)

    def _call(self, call: OperatorCall) -> None:
        names = [name for name in call.names if name]
        label = names[0] if names else call.target
        try:
            for name in names:
                if self._builder.defined_here(name):
                    raise ModelImportError(f"the .pt2 produces {name!r} twice")
            self._lower_call(call, label)
        except UnsupportedUse as error:
            self._reasons.append(f"{call.target} ({label}): {error}")
            for name in names:  # let later nodes go on
                self._values.define(name, self._builder.resolve(name) or self._builder.define(name))

    def _lower_call(self, call: OperatorCall, label: str) -> None:
        entry = covered(call.target)
        if entry is None:
            raise UnsupportedUse("not in the allow-list")
        self._builder.begin(label)
        use = CallArguments(call, label, self._builder, self._values.read, self._program)
        try:
            entry(use, self._builder)
        except (ValueError, IndexError) as error:
            raise UnsupportedUse(f"malformed arguments: {error}") from error
        missed = use.unread()
        if missed:
            raise UnsupportedUse(f"{', '.join(missed)} not covered")
        self._bind(call)

    def _bind(self, call: OperatorCall) -> None:
        """Enter each result: a tensor of its own, a view, or a change of the operand."""
        for name in filter(None, call.names):
            value = self._builder.resolve(name)
            if value is None:
                if self._reads[name]:
                    raise UnsupportedUse(f"result {name} not covered")
                continue
            if call.target not in TABLE:
                changed = call.arguments.get("self")
                assert isinstance(changed, Tensor)
                self._values.change(changed.name, self._typed(call, changed.name, value), name)
            else:
                self._values.result(name, call, value)

    def _typed(self, call: OperatorCall, changed: str, value: str) -> str:
        """Return ``value`` in the element type of the changed tensor, which in-place calls keep."""
        dtypes = self._program.dtypes
        others = [a.name for a in call.arguments.values() if isinstance(a, Tensor)]
        wanted = dtypes.get(changed, "")
        if all(dtypes.get(name) == wanted for name in others):
            return value
        return self._builder.emit("braid.cast", [value], dtype=wanted)

    def _relowered(self, call: OperatorCall, base: str) -> str:
        """Write the view operator ``call`` again for another value; return its result."""
        self._again += 1
        name = f"{call.names[0]}/again{self._again}"
        arguments = {k: v for k, v in call.arguments.items() if k not in ("self", "input")}
        own = next(k for k in ("self", "input") if k in call.arguments)
        again = dataclasses.replace(
            call, arguments={own: call.arguments[own], **arguments}, outputs=(Tensor(name),)
        )
        moved = call.arguments[own]
        assert isinstance(moved, Tensor)

        def read(tensor: str) -> str:
            return base if tensor == moved.name else self._values.read(tensor)

        entry = covered(call.target)
        assert entry is not None
        entry(CallArguments(again, name, self._builder, read, self._program), self._builder)
        return self._builder.resolve(name) or base


def _reads(program: ExportedProgram) -> Counter[str]:
    """Number of reads of each name, outputs included."""
    reads: Counter[str] = Counter(program.outputs.values())

    def count(argument: Argument) -> None:
        if isinstance(argument, Tensor | Symbol):
            reads[argument.name] += 1
        elif isinstance(argument, list):
            for item in argument:
                count(item)

    for call in program.calls:
        for argument in call.arguments.values():
            count(argument)
    return reads
