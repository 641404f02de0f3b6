"""Opara: streams by one pass over the graph, launch order by resources (IEEE TC 2025).

Algorithm 1 gives a unit the stream of its first predecessor that has not yet passed its stream
on, and a new stream if there is none. Algorithm 2 launches, of the ready units, the one with the
least demand, taking turns between memory-bound and compute-bound ones.

The paper is followed where the authors' code differs: demand is threads, registers and shared
memory together (their code: shared memory of the first kernel), and what is memory-bound is told
by the engine's profile (their code: substrings of names).
"""

from __future__ import annotations

from collections.abc import Sequence

from braid.core.measurement import UnitProfile
from braid.scheduler.problem import Problem
from braid.scheduler.streams import StreamSchedule

COMPUTE_BOUND_KINDS = frozenset(
    {"aten.convolution", "aten.linear", "aten.matmul", "aten.lstm", "aten.gru"}
)


def opara(problem: Problem) -> StreamSchedule:
    predecessors = problem.units.predecessors
    profiles = problem.facts.profiles or _assumed_profiles(problem)
    return StreamSchedule(launch_order(predecessors, profiles), allocate_streams(predecessors))


def allocate_streams(predecessors: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Algorithm 1: the units of each stream. Takes O(edges)."""
    streams: list[list[int]] = []
    stream_of: list[int] = []
    passed_on = [False] * len(predecessors)
    for unit, row in enumerate(predecessors):
        parent = next((p for p in row if not passed_on[p]), None)
        if parent is None:
            stream_of.append(len(streams))
            streams.append([unit])
        else:
            passed_on[parent] = True
            stream_of.append(stream_of[parent])
            streams[stream_of[parent]].append(unit)
    return tuple(map(tuple, streams))


def launch_order(
    predecessors: Sequence[Sequence[int]], profiles: Sequence[UnitProfile]
) -> tuple[int, ...]:
    """Algorithm 2: alternate between the lists, least demand first; ties to the lower unit."""
    missing = [len(row) for row in predecessors]
    successors: list[list[int]] = [[] for _ in predecessors]
    for unit, row in enumerate(predecessors):
        for p in row:
            successors[p].append(unit)
    lists: dict[bool, list[int]] = {True: [], False: []}  # memory-bound, compute-bound
    for unit, count in enumerate(missing):
        if not count:
            lists[profiles[unit].memory_bound].append(unit)
    queue: list[int] = []
    memory_turn = True
    while lists[True] or lists[False]:
        ready = lists[memory_turn] or lists[not memory_turn]
        unit = min(ready, key=lambda unit: (profiles[unit].demand, unit))
        ready.remove(unit)
        queue.append(unit)
        for successor in successors[unit]:
            missing[successor] -= 1
            if not missing[successor]:
                lists[profiles[successor].memory_bound].append(successor)
        memory_turn = not profiles[unit].memory_bound
    return tuple(queue)


def _assumed_profiles(problem: Problem) -> list[UnitProfile]:
    """Without a profile: a long unit is taken to demand much, a known arithmetic kind to compute.

    Units of an abstract graph have no kind; they all count as compute-bound.
    """
    return [
        UnitProfile(
            demand=latency_us, memory_bound=kind != "unit" and kind not in COMPUTE_BOUND_KINDS
        )
        for latency_us, kind in zip(problem.unit_latencies_us(), problem.units.kinds, strict=True)
    ]
