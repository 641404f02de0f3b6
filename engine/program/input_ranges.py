"""Values of a request's inputs that operators of a graph can use: indices, lengths, divisors.

    static graph ──input_ranges──> InputRange ──check──> InvalidRequest, naming the input

On a CPU each operator looks at its own operands (``braid.engine.ops.value_ranges``). On a GPU that
would wait for the device, and an index out of range is an assertion that poisons the context: one
bad request would cost every other its worker. So there, inputs that serve as they are, after no
more than a cast or a change of shape, are checked before they leave the host. Values that a model
computes are its own affair.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import op
from braid.engine.ops.value_ranges import ValueRange
from braid.engine.runtime.arrays import Array, Arrays

_SAME_PLACES = frozenset({"braid.identity", "braid.cast"})
"""Kinds whose output holds the elements of their operand where they were."""

_SAME_ELEMENTS = _SAME_PLACES | {
    *("braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze"),
    *("braid.expand", "aten.permute"),
}
"""Kinds whose output holds all elements of their first operand, and no others."""


@dataclass(frozen=True, slots=True)
class InputRange:
    """Values that an input may hold."""

    name: str
    values: ValueRange

    def check(self, array: Array) -> None:
        wrong = self.values.wrong_value(array)
        if wrong is not None:
            raise InvalidRequest(
                f"input {self.name!r} holds the {self.values.what} {wrong}; the model takes "
                f"{self.values}"
            )


def input_ranges(graph: OpGraph) -> tuple[InputRange, ...]:
    """Ranges of the inputs of a static graph that operators use for more than arithmetic."""
    source = {name: name for name, spec in graph.inputs.items() if "INT" in spec.dtype}
    if not source:
        return ()
    moved = set[str]()  # values that hold the elements in other places
    ranges: dict[InputRange, None] = {}
    for unit in graph.operators:
        for value, values in _used(unit, graph):
            has_places = values.column is None or value not in moved
            if value in source and has_places and "INT" in graph.spec(value).dtype:
                ranges[InputRange(source[value], values)] = None
        if unit.kind in _SAME_ELEMENTS and unit.inputs[0] in source:
            first, result = unit.inputs[0], unit.outputs[0]
            source[result] = source[first]
            if first in moved or unit.kind not in _SAME_PLACES:
                moved.add(result)
    return tuple(ranges)


def _used(unit: Operator, graph: OpGraph) -> Iterator[tuple[str, ValueRange]]:
    values = op(unit.kind).values
    if values is None:
        return
    shapes = [
        [int(extent) for extent in graph.spec(name).shape] if name else None for name in unit.inputs
    ]
    for wanted in values(shapes, unit.attributes):
        yield unit.inputs[wanted.operand], wanted


def check_inputs(ranges: tuple[InputRange, ...], inputs: Arrays) -> None:
    for wanted in ranges:
        wanted.check(inputs[wanted.name])
