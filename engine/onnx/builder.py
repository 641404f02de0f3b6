"""Graph under construction, to which lowering functions write.

    node ──lowering function──> Builder.emit(kind, operands, attributes) ──> Operator

An operator whose operands are all constants is evaluated at once if it is small, so that shape
operands and rearranged weights are literals and constants by the time they are needed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Branch, Operator
from braid.engine.ops.evaluation import attempt, meta_like
from braid.engine.ops.families.quantised_unit import DEQUANTISE

FOLDED_ELEMENTS = 2**22  # most elements of one tensor evaluated at import
FOLDED_TOTAL = 2**26  # and of all together


_INTEGERS = (torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class QuantisedConstant:
    """Integers of a constant that is the dequantisation of constants."""

    values: Tensor
    scale: str  # value name of a constant
    zero: str  # the same, or "" for zero
    axis: int  # of several scales


class Builder:
    """Operators, constants and names of a graph being lowered.

    A scope maps names of the uploaded model to value names, which are unique over the graph. That
    of a subgraph also sees the enclosing ones.
    """

    def __init__(self) -> None:
        self.constants: dict[str, Tensor] = {}
        self.quantised: dict[str, QuantisedConstant] = {}  # constant in floats -> its integers
        self.operators: list[Operator] = []
        self._scopes: list[dict[str, str]] = [{}]
        self._taken: Counter[str] = Counter()  # value and operator names
        self._node = "graph"  # the node being lowered
        self._folded = 0

    # Names

    def resolve(self, source_name: str) -> str | None:
        """Value for which a source name stands in the present scope; None if it has none."""
        for scope in reversed(self._scopes):
            if source_name in scope:
                return scope[source_name]
        return None

    def defined_here(self, source_name: str) -> bool:
        return source_name in self._scopes[-1]

    def alias(self, source_name: str, value: str) -> None:
        """Let a source name stand for an existing value."""
        self._scopes[-1][source_name] = value

    def define(self, source_name: str) -> str:
        value = self._unused(source_name)
        self._scopes[-1][source_name] = value
        return value

    def sources(self) -> dict[str, tuple[str, ...]]:
        """Source names outside of subgraphs that stand for each value, the latest last."""
        sources: dict[str, tuple[str, ...]] = {}
        for source, value in self._scopes[0].items():
            sources[value] = (*sources.get(value, ()), source)
        return sources

    def _unused(self, wish: str) -> str:
        name = wish
        while self._taken[name]:
            self._taken[wish] += 1
            name = f"{wish}~{self._taken[wish]}"
        self._taken[name] += 1
        return name

    def begin(self, node: str) -> None:
        """Name the operators that follow after this node."""
        self._node = node

    @contextmanager
    def subgraph(self) -> Iterator[list[Operator]]:
        """Collect the operators of a subgraph, in a scope of its own."""
        outer, node = self.operators, self._node
        self.operators = []
        self._scopes.append({})
        try:
            yield self.operators
        finally:
            self._scopes.pop()
            self.operators, self._node = outer, node

    # Constants

    def add_constant(self, wish: str, tensor: Tensor) -> str:
        value = self._unused(wish)
        self.constants[value] = tensor
        return value

    def add_transposed(self, matrix: str) -> str:
        value = self.add_constant(f"{matrix}/transposed", self.constants[matrix].t())
        if (integers := self.quantised.get(matrix)) is not None:
            turned, axis = integers.values.t(), 1 - integers.axis % 2
            self.quantised[value] = replace(integers, values=turned, axis=axis)
        return value

    def define_constant(self, source_name: str, tensor: Tensor) -> None:
        self.constants[self.define(source_name)] = tensor

    def constant(self, value: str) -> Tensor | None:
        return self.constants.get(value)

    def literal(self, value: str) -> Any:
        tensor = self.constants.get(value)
        return None if tensor is None else tensor.tolist()

    # Operators

    def emit(
        self,
        kind: str,
        operands: Sequence[str],
        outputs: Sequence[str] = ("",),
        host: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> str:
        """Write one operator; returns the value name of its first output.

        Args:
            operands: value names, ``""`` where absent.
            outputs: source names to define, ``""`` for values without one.
            host: attribute -> value whose content becomes that attribute: at once if it is a
                constant, at specialisation otherwise. Absent values (``""``) are left out.
            attributes: literals.
        """
        dynamic = {}
        for attribute, value in (host or {}).items():
            if value in self.constants:
                attributes[attribute] = self.constants[value].tolist()
            elif value:
                dynamic[attribute] = value
        values = tuple(
            self.define(name) if name else self._unused(f"{self._node}/{kind.split('.')[1]}")
            for name in outputs
        )
        operator = Operator("?", kind, tuple(operands), values, attributes, dynamic)
        folded = None if dynamic else self._evaluated(operator)
        if folded is not None:
            self.constants.update(zip(values, folded, strict=False))
            self._note_integers(operator)
        else:
            self._write(operator)
        return values[0]

    def _note_integers(self, folded: Operator) -> None:
        """Keep the integers of a constant in floats that was folded from them."""
        if folded.kind != DEQUANTISE or folded.attributes["block"]:
            return
        source, scale, zero = folded.inputs
        values, axis = self.constants[source], folded.attributes["axis"]
        assert isinstance(axis, int)
        if values.dtype in _INTEGERS and self.constants[scale].dtype == torch.float32:
            self.quantised[folded.outputs[0]] = QuantisedConstant(values, scale, zero, axis)

    def emit_cond(
        self, condition: str, branches: tuple[Branch, ...], outputs: Sequence[str]
    ) -> None:
        """Write a conditional, whose branch specialisation chooses."""
        values = tuple(self.define(name) if name else self._unused("cond") for name in outputs)
        self._write(Operator("?", "braid.cond", (), values, {}, {"condition": condition}, branches))

    def _write(self, operator: Operator) -> None:
        name = self._unused(f"{self._node}")
        self.operators.append(replace(operator, name=name))

    def _evaluated(self, operator: Operator) -> tuple[Tensor, ...] | None:
        """Outputs of an operator whose operands are small constants; None of any other."""
        if any(name and name not in self.constants for name in operator.inputs):
            return None
        operands = [self.constants.get(name) for name in operator.inputs]
        try:
            with torch.no_grad():
                metas = [None if tensor is None else meta_like(tensor) for tensor in operands]
                elements = sum(output.numel() for output in attempt(operator, metas))
                if elements > FOLDED_ELEMENTS or self._folded + elements > FOLDED_TOTAL:
                    return None
                self._folded += elements
                return attempt(operator, operands, "cpu")
        except InvalidRequest:  # it may stand in a branch that is never taken
            return None


class UnsupportedUse(Exception):
    """A use of an operator that the lowering tables do not cover; the message is the reason."""


def transposed(to: Builder, matrix: str) -> str:
    if to.constant(matrix) is not None:
        return to.add_transposed(matrix)
    return to.emit("aten.permute", [matrix], dims=[1, 0])


def emit_matmul(to: Builder, a: str, b: str, outputs: Sequence[str]) -> str:
    """Matrix product; by a constant matrix, a linear operator with the weight transposed."""
    weight = to.constant(b)
    if weight is not None and weight.dim() == 2 and weight.is_floating_point():
        return to.emit("aten.linear", [a, transposed(to, b), ""], outputs)
    return to.emit("aten.matmul", [a, b], outputs)
