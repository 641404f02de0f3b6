"""Long parallel branches of a graph: towers, or whole networks in one file.

    before ──┬─> a ─> a ─> a ──┬─> after        a lane for each branch, or for several short ones,
             └─> b ─> b ─> b ──┘                and nobody waits inside

The pruned search of IOS has stages of a few units, after each of which all lanes wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from braid.core.graph import OpGraph
from braid.core.margins import BRANCH_GAIN


class Branches(NamedTuple):
    """A row of units that falls into parts of which none reads from another."""

    span: range
    members: tuple[tuple[int, ...], ...]  # units of each part, ascending


def find_branches(
    graph: OpGraph, starts: Iterable[int], work_us: Sequence[float], lanes: int
) -> Branches | None:
    """Find the row of units whose branches gain most on lanes; None: nothing gains enough.

    ``starts``: positions at which the row may begin, beside the first unit. Cost: about O(n) for
    each start, where there are few branches at a time.
    """
    makers = {value: at for at, unit in enumerate(graph.operators) for value in unit.outputs}
    reads = [
        [makers[value] for value in unit.inputs if value in makers] for unit in graph.operators
    ]
    most = BRANCH_GAIN * sum(work_us), len(reads)  # gain, then length: what is left out waits
    best = range(0)
    for start in sorted({0, *starts}):
        joined = _Joined()
        for at in range(start, len(reads)):
            joined.add(at, [unit for unit in reads[at] if unit >= start], work_us[at])
            if (gain := (round(joined.gain_us(lanes), 3), at + 1 - start)) > most:
                best, most = range(start, at + 1), gain
    if not best:
        return None
    joined = _Joined()
    for at in best:
        joined.add(at, [unit for unit in reads[at] if unit in best], work_us[at])
    return Branches(best, joined.members())


class _Joined:
    """Units that are joined where one reads from another: a union-find."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._loads_us: dict[int, float] = {}  # by root

    def add(self, unit: int, reads: Iterable[int], work_us: float) -> None:
        self._parents[unit], self._loads_us[unit] = unit, work_us
        for other in {self._root(read) for read in reads}:
            self._parents[other] = unit
            self._loads_us[unit] += self._loads_us.pop(other)

    def gain_us(self, lanes: int) -> float:
        """Work that lanes take off, by what the longest of them has."""
        if len(self._loads_us) < 2:
            return 0.0
        loads_us = list(self._loads_us.values())
        return sum(loads_us) - max(balanced(loads_us, lanes)[1])

    def members(self) -> tuple[tuple[int, ...], ...]:
        by_root: dict[int, list[int]] = {}
        for unit in sorted(self._parents):
            by_root.setdefault(self._root(unit), []).append(unit)
        return tuple(map(tuple, by_root.values()))

    def _root(self, unit: int) -> int:
        while (parent := self._parents[unit]) != unit:
            self._parents[unit] = self._parents[parent]
            unit = parent
        return unit


def balanced(work_us: Sequence[float], lanes: int) -> tuple[list[list[int]], list[float]]:
    """Divide works over lanes, the longest first, each to the emptiest lane.

    Returns the positions of the works of each lane, ascending, and the load of each; none is empty.
    """
    places: list[list[int]] = [[] for _ in range(min(lanes, len(work_us)))]
    loads_us = [0.0] * len(places)
    for at in sorted(range(len(work_us)), key=lambda at: (-work_us[at], at)):
        lane = loads_us.index(min(loads_us))
        places[lane].append(at)
        loads_us[lane] += work_us[at]
    return [sorted(lane) for lane in places if lane], loads_us
