"""Equality of stages to the device: same units, same wiring, inside and across groups.

A measurement made for one stage holds for every stage with an equal signature, in any model.
Weights count by shape. The order of the groups does not count, the order inside a group does.
Two equal stages may in rare cases (equal groups that share inputs crosswise) get different
signatures: that costs one measurement more, never a wrong one.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter

from braid.core.graph import OpGraph
from braid.core.schedule import Stage, Strategy
from braid.scheduler.dag import bits
from braid.scheduler.units import Operand, UnitGraph, as_units

StageKey = tuple[int, ...]
"""Numbers of the groups' texts, a negative mark of the strategy, then which reads are shared."""

_MARKS: dict[Strategy, int] = {"concurrent": -1, "merge": -2}


def stage_signature(graph: OpGraph | UnitGraph, stage: Stage) -> str:
    """Stable identifier of what running ``stage`` means to the device: 32 hex characters."""
    units = as_units(graph)
    by_unit = sorted(stage.groups, key=min)
    described = sorted([describe(units, group) for group in by_unit], key=itemgetter(0))
    texts = [text for text, _ in described]
    wiring = _sharing([reads for _, reads in described])
    document = json.dumps([stage.strategy, texts, wiring])
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def block_signature(block: UnitGraph) -> str:
    """Equal for blocks with equal units and wiring in the same order: they share one solution."""
    return describe(block, range(len(block)))[0]


def describe(graph: UnitGraph, group: Iterable[int]) -> tuple[str, tuple[Operand, ...]]:
    """Text of a group, and the values it reads from outside, by first appearance."""
    position: dict[int, int] = {}
    outside: dict[Operand, int] = {}
    parts: list[object] = []
    for unit in group:
        wires = []
        for producer, port in graph.operands[unit]:
            if producer in position:
                wires.append(f"{position[producer]}.{port}")
            else:
                wires.append(f"x{outside.setdefault((producer, port), len(outside))}")
        parts.append([graph.signatures[unit], wires])
        position[unit] = len(position)
    return json.dumps(parts, separators=(",", ":")), tuple(outside)


def _sharing(reads: Iterable[Iterable[Operand]]) -> tuple[int, ...]:
    """For each outside value that is read, where in the stage it is read first.

    Empty if no value is read by several groups.
    """
    values = list(chain.from_iterable(reads))
    return tuple(map(values.index, values)) if len(set(values)) < len(values) else ()


class StageKeys:
    """Keys of the stages of one block, whose groups are given as sets of its units.

    Keys of blocks that share ``numbers`` are equal if and only if the signatures are.
    """

    def __init__(self, block: UnitGraph, numbers: dict[str, int]) -> None:
        self._described = _Descriptions(block, numbers)

    def key(self, groups: Sequence[int], strategy: Strategy = "concurrent") -> StageKey:
        described = self._described
        mark = _MARKS[strategy]
        if len(groups) == 1:
            return described[groups[0]][0], mark
        parts = [described[group] for group in groups]
        parts.sort()  # by number, then by lowest unit, which no two groups share
        numbers: list[int] = []
        values: list[int] = []
        for number, _, reads in parts:
            numbers.append(number)
            values += reads
        numbers.append(mark)
        if len(set(values)) < len(values):
            numbers += map(values.index, values)
        return tuple(numbers)


class _Descriptions(dict[int, tuple[int, int, tuple[int, ...]]]):
    """Group -> number of its text, its lowest unit, and the outside values it reads."""

    def __init__(self, block: UnitGraph, numbers: dict[str, int]) -> None:
        super().__init__()
        self._block = block
        self._numbers = numbers
        self._values: dict[Operand, int] = {}

    def __missing__(self, group: int) -> tuple[int, int, tuple[int, ...]]:
        text, reads = describe(self._block, bits(group))
        number = self._numbers.setdefault(text, len(self._numbers))
        values = tuple([self._values.setdefault(value, len(self._values)) for value in reads])
        self[group] = number, group & -group, values
        return self[group]
