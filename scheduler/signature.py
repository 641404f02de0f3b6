"""When two stages are the same to the device: same units, same wiring, inside and across groups.

A measurement made for one stage holds for every stage with an equal signature, in any model.
Weights count by shape. The order of the groups does not count, the order inside a group does.
Two equal stages may in rare cases (equal groups that share inputs crosswise) get different
signatures: that costs one measurement more, never a wrong one.

    stage_signature(graph, stage)   the hash that measurements are stored under
    StageKeys                       the same equality, much cheaper, during one search
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from core.graph import OpGraph
from core.schedule import Stage, Strategy
from scheduler.units import Operand, UnitGraph, as_units

Group = tuple[int, ...]
StageKey = tuple[Strategy, tuple[int, ...], tuple[int, ...]]


def stage_signature(graph: OpGraph | UnitGraph, stage: Stage) -> str:
    """Stable identifier of what running ``stage`` means to the device: 32 hex characters."""
    units = as_units(graph)
    described = sorted((describe(units, group) for group in stage.groups), key=lambda d: d[0])
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


def _sharing(reads: Sequence[tuple[Operand, ...]]) -> tuple[int, ...]:
    """Which outside values several groups read: empty if none, else one number for each read."""
    numbers: dict[Operand, int] = {}
    wiring = [numbers.setdefault(value, len(numbers)) for row in reads for value in row]
    return () if len(numbers) == len(wiring) else tuple(wiring)


class StageKeys:
    """Keys of the stages of one block.

    Keys of two blocks that share ``numbers`` are equal if and only if the signatures are.
    """

    def __init__(self, block: UnitGraph, numbers: dict[str, int]) -> None:
        self._block = block
        self._numbers = numbers
        self._groups: dict[Group, tuple[int, tuple[Operand, ...]]] = {}

    def key(self, groups: Sequence[Group], strategy: Strategy = "concurrent") -> StageKey:
        """The key of a stage of this block."""
        known = self._groups
        try:
            described = [known[group] for group in groups]
        except KeyError:
            described = [self._describe(group) for group in groups]
        if len(described) == 1:
            return strategy, (described[0][0],), ()
        described.sort(key=_number)
        return (
            strategy,
            tuple([number for number, _ in described]),
            _sharing([reads for _, reads in described]),
        )

    def _describe(self, group: Group) -> tuple[int, tuple[Operand, ...]]:
        text, reads = describe(self._block, group)
        number = self._numbers.setdefault(text, len(self._numbers))
        self._groups[group] = number, reads
        return number, reads


def _number(described: tuple[int, tuple[Operand, ...]]) -> int:
    return described[0]
