"""Graphs, costs and a brute force that shares no code with the planners."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from functools import cache

from braid.core.measurement import DeviceFacts, StageOverheads, UnitProfile
from braid.core.schedule import Stage
from braid.scheduler.units import UnitGraph

Edges = list[list[int]]
Groups = frozenset[frozenset[int]]


def graph_of(predecessors: Sequence[Sequence[int]], name: str = "graph") -> UnitGraph:
    """A graph of distinct abstract units; units without predecessors read nothing."""
    names = tuple(str(unit) for unit in range(len(predecessors)))
    operands = tuple(tuple((p, 0) for p in sorted(row)) for row in predecessors)
    return UnitGraph(name, names, ("unit",) * len(names), names, operands)


def random_edges(rng: random.Random, n: int) -> Edges:
    """Predecessors of each unit; sparse and dense graphs alike."""
    density = rng.choice([0.15, 0.3, 0.5, 0.8])
    return [[p for p in range(v) if rng.random() < density] for v in range(n)]


def random_graph(seed: int, max_ops: int) -> tuple[UnitGraph, random.Random]:
    rng = random.Random(seed)
    return graph_of(random_edges(rng, rng.randint(1, max_ops))), rng


def _random_number(*parts: object) -> float:
    """In [0, 1), the same for the same parts."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


class RandomCost:
    """Any stage may cost anything: no structure that a planner could lean on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.asked: list[Stage] = []

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(stage)
        return self.of(frozenset(frozenset(group) for group in stage.groups))

    def of(self, groups: Groups) -> float:
        return 1.0 + 16 * _random_number(self.seed, sorted(sorted(group) for group in groups))


class MonotoneCost(RandomCost):
    """Random, but adding units never makes a stage faster: what lazy-ios relies on.

    Units of different groups disturb each other by random amounts; a stage is as slow as its
    slowest group, or as the work of all its units.
    """

    STAGE_US = 0.5

    def unit_us(self, unit: int) -> float:
        return 1.0 + 9 * _random_number(self.seed, "unit", unit)

    def work_us(self, unit: int) -> float:
        return self.unit_us(unit) * _random_number(self.seed, "work", unit)

    def of(self, groups: Groups) -> float:
        def slowed(group: frozenset[int]) -> float:
            others = [other for g in groups if g != group for other in g]
            return sum(map(self.unit_us, group)) + sum(
                _random_number(self.seed, min(u, v), max(u, v)) for u in group for v in others
            )

        work = sum(self.work_us(unit) for group in groups for unit in group)
        return self.STAGE_US + max(work, *map(slowed, groups), 0.0)

    def facts(self, n: int) -> DeviceFacts:
        profiles = tuple(UnitProfile(work_us=(self.work_us(unit),)) for unit in range(n))
        return DeviceFacts(overheads=StageOverheads(self.STAGE_US), profiles=profiles)


def components(units: frozenset[int], edges: Edges) -> Groups:
    """Connected components by merging sets until nothing changes."""
    groups = [{unit} for unit in units]
    for v in units:
        for u in edges[v]:
            if u in units:
                a = next(group for group in groups if u in group)
                b = next(group for group in groups if v in group)
                if a is not b:
                    groups.remove(b)
                    a |= b
    return frozenset(frozenset(group) for group in groups)


def subsets(units: frozenset[int]) -> Iterator[frozenset[int]]:
    items = sorted(units)
    for mask in range(1, 1 << len(items)):
        yield frozenset(item for i, item in enumerate(items) if mask >> i & 1)


def next_stages(done: frozenset[int], edges: Edges, r: int, s: int) -> Iterator[Groups]:
    """All stages that may follow: each unit finds what it reads done or in the stage itself."""
    for stage in subsets(frozenset(range(len(edges))) - done):
        if all(u in done or u in stage for v in stage for u in edges[v]):
            groups = components(stage, edges)
            if len(groups) <= s and all(len(group) <= r for group in groups):
                yield groups


def every_schedule(edges: Edges, r: int, s: int) -> Iterator[list[Groups]]:
    """All lists of stages, one by one, built from the front."""

    def extend(done: frozenset[int], stages: list[Groups]) -> Iterator[list[Groups]]:
        if len(done) == len(edges):
            yield stages
        for groups in next_stages(done, edges, r, s):
            yield from extend(done.union(*groups), [*stages, groups])

    yield from extend(frozenset(), [])


def best_latency(edges: Edges, cost: RandomCost, r: int, s: int) -> float:
    """The least sum of stage latencies over all schedules, by recursion over what is done."""

    @cache
    def rest(done: frozenset[int]) -> float:
        if len(done) == len(edges):
            return 0.0
        return min(
            cost.of(groups) + rest(done.union(*groups)) for groups in next_stages(done, edges, r, s)
        )

    return rest(frozenset())
