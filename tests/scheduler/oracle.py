"""Graphs, costs and a brute force that shares no code with the planners."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from core.schedule import Stage
from scheduler.units import UnitGraph

Edges = list[list[int]]
Groups = frozenset[frozenset[int]]


def random_edges(rng: random.Random, n: int) -> Edges:
    """Predecessors of each unit; sparse and dense graphs alike."""
    density = rng.choice([0.15, 0.3, 0.5, 0.8])
    return [[p for p in range(v) if rng.random() < density] for v in range(n)]


def random_graph(seed: int, max_ops: int) -> tuple[UnitGraph, random.Random]:
    rng = random.Random(seed)
    return UnitGraph.from_edges(random_edges(rng, rng.randint(1, max_ops))), rng


class RandomCost:
    """Any stage may cost anything: no structure that a planner could lean on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.asked: list[Stage] = []

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(stage)
        return self.of(frozenset(frozenset(group) for group in stage.groups))

    def of(self, groups: Groups) -> float:
        text = str((self.seed, sorted(sorted(group) for group in groups)))
        return 1.0 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**28


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


def every_schedule(edges: Edges, r: int, s: int) -> Iterator[list[Groups]]:
    """All lists of stages, built from the front: a stage needs all it reads done or inside."""

    def extend(done: frozenset[int], stages: list[Groups]) -> Iterator[list[Groups]]:
        left = frozenset(range(len(edges))) - done
        if not left:
            yield stages
        for stage in subsets(left):
            if all(u in done or u in stage for v in stage for u in edges[v]):
                groups = components(stage, edges)
                if len(groups) <= s and all(len(group) <= r for group in groups):
                    yield from extend(done | stage, [*stages, groups])

    yield from extend(frozenset(), [])


def best_latency(edges: Edges, cost: RandomCost, r: int, s: int) -> float:
    """The least sum of stage latencies over all schedules, by a plain recursion over done sets."""
    known: dict[frozenset[int], float] = {}

    def rest(done: frozenset[int]) -> float:
        left = frozenset(range(len(edges))) - done
        if not left:
            return 0.0
        if done not in known:
            known[done] = min(
                cost.of(groups) + rest(done | stage)
                for stage in subsets(left)
                if all(u in done or u in stage for v in stage for u in edges[v])
                and len(groups := components(stage, edges)) <= s
                and all(len(group) <= r for group in groups)
            )
        return known[done]

    return rest(frozenset())
