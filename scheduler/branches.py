"""Lanes that each run a long part by themselves: branches of a graph, or rows of a batch.

    before ──┬─> a ─> a ─> a ──┬─> after        a lane for each branch, or for several short ones,
             └─> b ─> b ─> b ──┘                and nobody waits inside

Branches are towers, or whole networks in one file. The pruned search of IOS has stages of a few
units, after each of which all lanes wait. All lanes run in one engine, or on own kernels. Lanes
that compute at once slow each other, so the time of all of them together decides.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from braid.core.graph import OpGraph
from braid.core.margins import BRANCH_GAIN, LANES_RATIO
from braid.core.plan import Launch, StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.cost import Parts
from braid.scheduler.problem import Problem


def plan_of_branches(problem: Problem) -> tuple[StreamPlan, tuple[Stage, ...]] | None:
    """Run branches of the graph on a lane each; None: that gains too little.

    They are measured alone by each engine, balanced over lanes by that, and measured side by side.
    """
    graph, threads, work_us = problem.graph, problem.facts.threads, problem.unit_latencies_us()
    found = find_branches(graph, problem.borders, work_us, threads) if threads > 1 else None
    if found is None:
        return None
    engines, count = ("", *problem.facts.engines), len(found.members)
    alone_us = problem.parts_us(
        [(problem.part(units, name, 1),) for name in engines for units in found.members]
    )
    stages: list[Parts] = []
    for number, engine in enumerate(engines):
        branches_us = alone_us[number * count : (number + 1) * count]
        if max(branches_us) < inf:
            lanes, _ = balanced(branches_us, threads)
            joined = [sorted(unit for at in lane for unit in found.members[at]) for lane in lanes]
            stages.append(tuple(problem.part(units, engine, 1) for units in joined))
    stage, us = _fastest(problem, stages)
    before, after = range(found.span.start), range(found.span.stop, len(graph))
    rest_us = [sum(work_us[unit] for unit in units) for units in (before, after)]
    if us + sum(rest_us) > LANES_RATIO * sum(work_us):
        return None
    launches = [Launch(unit, 0) for unit in before]
    launches += [Launch(unit, lane) for lane, part in enumerate(stage) for unit in part.units]
    launches += [Launch(unit, 0) for unit in after]
    cuts = {found.span.start, found.span.stop} - {0, len(graph)}
    parts = tuple(part for part in stage if part.engine)
    plan = StreamPlan(tuple(launches), len(stage), tuple(sorted(cuts)), parts=parts)
    around = [(tuple(units),) if units else () for units in (before, after)]
    groups = around[0], tuple(part.units for part in stage), around[1]
    timed = zip(groups, (rest_us[0], us, rest_us[1]), strict=True)
    return plan, tuple(Stage(some, latency_us=took) for some, took in timed if some)


def plan_of_rows(problem: Problem) -> tuple[StreamPlan, tuple[Stage, ...]] | None:
    """Divide the rows of a batch over lanes; None: they do not divide so, or that takes long.

    The engine that is best on most rows needs less time on fewer, so all lanes run in it.
    """
    rows, threads = problem.facts.rows, problem.facts.threads
    lanes = min(threads, rows)
    if lanes < 2 or threads % lanes:
        return None
    units, engines = range(len(problem.graph)), ("", *problem.facts.engines)
    shares = [rows // lanes + (lane < rows % lanes) for lane in range(lanes)]
    stages: list[Parts] = [
        tuple(problem.part(units, engine, threads // lanes, share) for share in shares)
        for engine in engines
    ]
    stage, us = _fastest(problem, stages)
    if us > LANES_RATIO * sum(problem.unit_latencies_us()):
        return None
    launches = tuple(Launch(unit, 0) for unit in units)
    return StreamPlan(launches, 1, parts=stage), (Stage((tuple(units),), latency_us=us),)


def _fastest(problem: Problem, stages: Sequence[Parts]) -> tuple[Parts, float]:
    """The fastest of some stages, and its latency in microseconds."""
    together = zip(stages, problem.parts_us(stages), strict=True)
    return min(together, key=lambda timed: timed[1], default=((), inf))


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
    reads = graph.predecessors()
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
