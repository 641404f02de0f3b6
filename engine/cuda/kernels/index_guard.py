"""Indices in a request, checked on the CPU before they reach the device.

On a GPU an index out of range is an assertion that poisons the context: one bad request would cost
every other its worker. So inputs that serve as indices as they are, after no more than a cast or a
change of shape, are compared with the extent they index. Indices that a model computes are its own
affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph

_SAME_ELEMENTS = frozenset(
    {
        *("braid.identity", "braid.cast", "braid.reshape", "braid.flatten", "braid.squeeze"),
        *("braid.unsqueeze", "braid.expand", "braid.expand_as", "aten.permute"),
    }
)
"""Kinds whose output holds all elements of their first operand, and no others."""


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Range of the values that an input may hold."""

    name: str
    lowest: int
    highest: int

    def check(self, tensor: Tensor) -> None:
        """Raise InvalidRequest if a value is out of range."""
        if tensor.numel() == 0:
            return
        low, high = (int(end) for end in tensor.aminmax())
        if low < self.lowest or high > self.highest:
            wrong = low if low < self.lowest else high
            raise InvalidRequest(
                f"input {self.name!r} holds the index {wrong}; the model takes {self.lowest} to "
                f"{self.highest}"
            )


def index_ranges(graph: OpGraph) -> tuple[IndexRange, ...]:
    """Ranges of the inputs of a static graph that are used as indices."""
    source = {name: name for name, spec in graph.inputs.items() if "INT" in spec.dtype}
    found: dict[str, tuple[int, int]] = {}
    for unit in graph.operators:
        for value, lowest, highest in _indexed(unit, graph):
            if (name := source.get(value)) is not None:
                low, high = found.get(name, (lowest, highest))
                found[name] = max(low, lowest), min(high, highest)
        if unit.kind in _SAME_ELEMENTS and unit.inputs[0] in source:
            source[unit.outputs[0]] = source[unit.inputs[0]]
    return tuple(IndexRange(name, *ends) for name, ends in found.items())


def _indexed(unit: Operator, graph: OpGraph) -> Iterator[tuple[str, int, int]]:
    """Values that a unit uses as indices, and their range."""
    if unit.kind == "aten.embedding":
        yield unit.inputs[1], 0, _extent(graph, unit.inputs[0], 0) - 1
    elif unit.kind in ("braid.gather", "braid.gather_elements", "braid.scatter_elements"):
        axis = unit.attributes.get("axis", 0)
        if isinstance(axis, int):
            extent = _extent(graph, unit.inputs[0], axis)
            wraps = unit.attributes.get("wrap", True)
            yield unit.inputs[1], -extent if wraps else 0, extent - 1


def _extent(graph: OpGraph, value: str, axis: int) -> int:
    extent = graph.spec(value).shape[axis]
    assert isinstance(extent, int), "the graph is static"
    return extent


def check_indices(ranges: tuple[IndexRange, ...], inputs: Mapping[str, Tensor]) -> None:
    """Raise InvalidRequest if an input holds an index out of range."""
    for each in ranges:
        each.check(inputs[each.name])
