"""Bands: a chain of units on images, of which each thread computes a band of rows to the end.

    rows of x ──> unit a ──> unit b ──> rows of y         thread 0: rows 0 to 27 of y, and of all
    ░░░░░░░░░     ░░░░░░     ░░░░░░     ░░░░░░░░░                   before it what those read
    ▒▒▒▒▒▒▒▒▒     ▒▒▒▒▒▒     ▒▒▒▒▒▒     ▒▒▒▒▒▒▒▒▒         thread 1: rows 28 to 55, likewise

Rows near the border between two bands are computed by both of their threads (the halo), so no
thread waits for another one, and no value changes cores before the end of the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from braid.core.attributes import image_window, wholes
from braid.core.errors import InvalidArtefact
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType

_CONVOLUTIONS = ("aten.convolution", "braid.convolution_add")
_POOL, _CONCATENATION = "braid.max_pool", "aten.cat"
RESULT = "result"

LEAST_ROWS = 6
"""Rows of a band from which it may pay: below, the halo is most of it."""

MOST_PIECES = 3


@dataclass(frozen=True, slots=True)
class BandUnit:
    """A unit of one band: what it computes, and the rows of its operands and its result."""

    unit: Operator  # that reads ``operand(position)`` and makes ``RESULT``
    graph: OpGraph  # knows the specs of these
    values: tuple[str, ...]  # of the whole graph, by position; a constant's is empty
    rows: tuple[range, ...]  # of each of them, from the first one that the band has of it
    output: str  # of the whole graph
    result: range  # rows of all of it


def operand(position: int) -> str:
    return f"operand {position}"


def chain_input(graph: OpGraph, units: Sequence[int]) -> str:
    """The only value that a chain of units reads from outside.

    Args:
        graph: static.
        units: in the order of the graph; the last one makes the chain's result.

    Raises:
        InvalidArtefact: these units cannot run in bands.
    """
    operators = [graph.operators[unit] for unit in units]
    made = {name for operator in operators for name in operator.outputs}
    read = {name for operator in operators for name in _moving(operator, graph)}
    inner = made - set(operators[-1].outputs)
    others = (op for at, op in enumerate(graph.operators) if at not in set(units))
    shown = {name for op in others for name in op.inputs} | set(graph.outputs.values())
    outside = read - made
    if len(units) < 2 or len(outside) != 1 or inner & shown or not inner <= read:
        raise InvalidArtefact(f"the units {list(units)} are no chain from one value to another")
    if not all(_has_bands(operator, graph) for operator in operators):
        raise InvalidArtefact(f"some of the units {list(units)} cannot run in bands")
    (source,) = outside
    return source


def is_chain(graph: OpGraph, units: Sequence[int]) -> bool:
    """Whether a unit reads what another one of them makes."""
    made = {name for unit in units for name in graph.operators[unit].outputs}
    return any(made & set(graph.operators[unit].inputs) for unit in units)


def bands_of(graph: OpGraph, units: Sequence[int], count: int) -> list[list[BandUnit]]:
    """The units of each of ``count`` bands.

    Raises:
        InvalidArtefact: these units cannot run in bands.
    """
    chain_input(graph, units)
    operators = [graph.operators[unit] for unit in units]
    height = _height(graph, operators[-1].outputs[0])
    if height < count:
        raise InvalidArtefact(f"an image of {height} rows has no {count} bands")
    cuts = [height * band // count for band in range(count + 1)]
    return [_band(graph, operators, range(*pair)) for pair in pairwise(cuts)]


def parts_of_bands(graph: OpGraph, units: Sequence[int], count: int) -> list[list[float]]:
    """Part of each unit's rows that each of ``count`` bands computes; halos make it more than all.

    Raises:
        InvalidArtefact: these units cannot run in bands.
    """
    return [
        [len(unit.result) / _height(graph, unit.output) for unit in band]
        for band in bands_of(graph, units, count)
    ]


def _band(graph: OpGraph, operators: Sequence[Operator], result: range) -> list[BandUnit]:
    needed = {operators[-1].outputs[0]: result}
    band: list[BandUnit] = []
    for operator in reversed(operators):
        rows = needed[operator.outputs[0]]
        unit = _on_rows(operator, graph, rows)
        for name, some in zip(unit.values, unit.rows, strict=True):
            if name:
                known = needed.get(name, some)
                needed[name] = range(min(known.start, some.start), max(known.stop, some.stop))
        band.append(unit)
    first = {unit.output: needed[unit.output].start for unit in band}
    return [_placed(unit, first) for unit in reversed(band)]


def _placed(unit: BandUnit, first: Mapping[str, int]) -> BandUnit:
    """The unit with its rows counted from the first one that the band has of each value."""
    pairs = zip(unit.rows, unit.values, strict=True)
    starts = [(rows, first.get(name, 0)) for rows, name in pairs]
    return replace(unit, rows=tuple(range(rows.start - at, rows.stop - at) for rows, at in starts))


def _on_rows(operator: Operator, graph: OpGraph, rows: range) -> BandUnit:
    """A unit that computes some rows of what ``operator`` does, and the rows that it reads."""
    attributes: dict[str, Literal] = dict(operator.attributes)
    first = rows  # of the first operand; all others are read at the rows of the result
    if operator.kind in _CONVOLUTIONS:
        stride, padding, dilation, _ = image_window(operator)
        kernel = int(graph.spec(operator.inputs[1]).shape[2])
        first, pads = _read(
            rows, _height(graph, operator.inputs[0]), (kernel, stride[0], padding[0], dilation[0])
        )
        attributes["padding"] = [pads[0], padding[1], pads[1], padding[1]]
    elif operator.kind == _POOL:
        sizes = (wholes(attributes[name]) for name in ("kernel", "stride", "dilation"))
        kernels, stride, dilation = sizes
        given = wholes(attributes["pads"])
        first, pads = _read(
            rows, _height(graph, operator.inputs[0]), (kernels[0], stride[0], given[0], dilation[0])
        )
        attributes["pads"] = [pads[0], given[1], pads[1], given[3]]
    values = tuple("" if name in graph.constants else name for name in operator.inputs)
    reads = [range(0) if not name else first if at == 0 else rows for at, name in enumerate(values)]
    names = tuple(
        operand(at) if value else name
        for at, (value, name) in enumerate(zip(values, operator.inputs, strict=True))
    )
    specs = {
        operand(at): _cut(graph.spec(value), some)
        for at, (value, some) in enumerate(zip(values, reads, strict=True))
        if value
    }
    unit = Operator(operator.name, operator.kind, names, (RESULT,), attributes)
    constants = {name: graph.spec(name) for name in names if name in graph.constants}
    result = {RESULT: _cut(graph.spec(operator.outputs[0]), rows)}
    small = OpGraph(operator.name, specs, {RESULT: RESULT}, constants, (unit,), result)
    return BandUnit(unit, small, values, tuple(reads), operator.outputs[0], rows)


def _read(
    rows: range, height: int, window: tuple[int, int, int, int]
) -> tuple[range, tuple[int, int]]:
    """Rows that a window reads for rows of its result, and what it pads before and after them."""
    kernel, stride, padding, dilation = window
    start = rows.start * stride - padding
    stop = (rows.stop - 1) * stride - padding + (kernel - 1) * dilation + 1
    return range(max(0, start), min(height, stop)), (max(0, -start), max(0, stop - height))


def _moving(operator: Operator, graph: OpGraph) -> list[str]:
    return [name for name in operator.inputs if name and name not in graph.constants]


def _height(graph: OpGraph, value: str) -> int:
    return int(graph.spec(value).shape[2])


def _cut(spec: TensorType, rows: range) -> TensorType:
    batch, channels, _, width = spec.shape
    return TensorType(spec.dtype, (batch, channels, len(rows), width))


def _has_bands(operator: Operator, graph: OpGraph) -> bool:
    specs = [graph.spec(name) for name in (*_moving(operator, graph), *operator.outputs)]
    if len(operator.outputs) != 1 or not all(
        spec.dtype == "FP32" and len(spec.shape) == 4 and spec.shape[0] == 1 for spec in specs
    ):
        return False
    if operator.kind in _CONVOLUTIONS:
        is_plain = not operator.attributes.get("transposed")
        return is_plain and operator.inputs[1] in graph.constants
    if operator.kind == _POOL:
        return not isinstance(operator.attributes["pads"], str)
    return operator.kind == _CONCATENATION and operator.attributes["dim"] in (1, -3)


def pieces_of(graph: OpGraph, count: int) -> list[range]:
    """Units that may run in ``count`` bands, in pieces that follow one another from the first on.

    The images of a piece have one height. Empty if the first units cannot.
    """
    borders, last = [0], 0
    for at in range(1, len(graph.operators) + 1):
        before = graph.operators[at - 1]
        if not _has_bands(before, graph) or _height(graph, before.outputs[0]) < LEAST_ROWS * count:
            break
        is_end = at == len(graph.operators) or not _has_bands(graph.operators[at], graph)
        is_border = is_end or _is_lower(graph.operators[at], graph)
        if is_border and is_piece(graph, range(last, at)):
            borders.append(at)
            last = at
        if is_end:
            break
    spans = [range(*pair) for pair in pairwise(borders)]
    return spans[:MOST_PIECES]


def _is_lower(operator: Operator, graph: OpGraph) -> bool:
    return _height(graph, operator.outputs[0]) < _height(graph, operator.inputs[0])


def is_piece(graph: OpGraph, units: range) -> bool:
    """Whether one value enters these units and one leaves them."""
    made = {name for unit in units for name in graph.operators[unit].outputs}
    read = {name for unit in units for name in _moving(graph.operators[unit], graph)}
    later = graph.operators[units.stop :]
    shown = {name for op in later for name in op.inputs} | set(graph.outputs.values())
    leaving = made & shown
    last = set(graph.operators[units.stop - 1].outputs)
    return len(read - made) == 1 and leaving == last and made - last <= read
