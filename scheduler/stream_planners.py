"""Planners that put units on streams: LIOS, Opara, Nimble.

LIOS (Latency-based Inter-Operator Scheduling, IEEE TSC 2024), Algorithm 1: of the ready units, take
the one with the longest latency and put it on the stream on which it finishes first. Ties go to the
lower unit and to the lower stream, as in the worked example of Table III.

Opara (IEEE TC 2025). Algorithm 1 gives a unit the stream of its first predecessor that has not yet
passed its stream on, and a new stream if there is none. Algorithm 2 launches, of the ready units,
the one with the least demand, taking turns between memory-bound and compute-bound ones. The paper
is followed where the authors' code differs: demand is threads, registers and shared memory
together, and what is memory-bound is told by the engine's profile.

Nimble (Kwon et al., NeurIPS 2020, section 4.2): as few streams as full concurrency allows. Edges
that a longer path implies are dropped. A maximum matching between units and their successors gives
chains with the fewest synchronisations. As in the authors' code, a second matching joins a chain to
one that can only start after it (28 chains of GoogLeNet become 4 streams). Units launch in the
order of the graph; events that others imply are dropped (scheduler/streams.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from braid.core.measurement import UnitProfile
from braid.scheduler.dag import Dag, bits
from braid.scheduler.matching import maximum_matching
from braid.scheduler.problem import Problem
from braid.scheduler.streams import StreamSchedule


@dataclass(frozen=True, slots=True)
class Placement:
    """One schedule tuple of the paper (definition 6): a unit, where and when it runs."""

    unit: int
    stream: int
    start_us: float
    finish_us: float


def lios(problem: Problem) -> StreamSchedule:
    """Schedule the whole graph; the launch order is the order of scheduling."""
    placed = place(
        problem.unit_latencies_us(), problem.units.predecessors, problem.options.max_streams
    )
    streams: list[list[int]] = [[] for _ in range(problem.options.max_streams)]
    for placement in placed:
        streams[placement.stream].append(placement.unit)
    return StreamSchedule(
        launch_order=tuple(placement.unit for placement in placed),
        streams=tuple(tuple(units) for units in streams if units),
    )


def place(
    latency_us: Sequence[float], predecessors: Sequence[Sequence[int]], streams: int
) -> list[Placement]:
    """Place each unit, in the order of Algorithm 1. Takes O(streams * n^2)."""
    free = [0.0] * streams
    finish: dict[int, float] = {}
    placed: list[Placement] = []
    waiting = [unit for unit, row in enumerate(predecessors) if not row]
    listed = set(waiting)
    while waiting:
        unit = max(waiting, key=lambda unit: (latency_us[unit], -unit))
        ready = max((finish[p] for p in predecessors[unit]), default=0.0)
        start, stream = min((max(free[s], ready), s) for s in range(streams))
        finish[unit] = free[stream] = start + latency_us[unit]
        placed.append(Placement(unit, stream, start, finish[unit]))
        waiting.remove(unit)
        for other, row in enumerate(predecessors):
            if other not in listed and all(p in finish for p in row):
                waiting.append(other)
                listed.add(other)
    return placed


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


def nimble(problem: Problem) -> StreamSchedule:
    chains = match_chains(problem.units.predecessors)
    streams = join_chains(chains, problem.units.predecessors)
    return StreamSchedule(tuple(range(len(problem.units))), tuple(map(tuple, streams)))


def match_chains(predecessors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Steps 1 and 2: the units of each chain, in order."""
    return _follow(maximum_matching(minimum_equivalent_graph(predecessors)), len(predecessors))


def join_chains(
    chains: Sequence[Sequence[int]], predecessors: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Step 3: chains one after the other on one stream where that delays nothing."""
    descendants = Dag.of(predecessors).descendants
    after = [
        sum(1 << j for j, other in enumerate(chains) if descendants[chain[-1]] >> other[0] & 1)
        for chain in chains
    ]
    joined = _follow(maximum_matching(after), len(chains))
    return [[unit for number in row for unit in chains[number]] for row in joined]


def minimum_equivalent_graph(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """For each unit, its successors without those that another successor leads to."""
    dag = Dag.of(predecessors)
    return [
        sum(
            1 << successor
            for successor in bits(after)
            if not any(dag.descendants[other] >> successor & 1 for other in bits(after))
        )
        for after in dag.after
    ]


def _follow(successor_of: dict[int, int], count: int) -> list[list[int]]:
    """The chains that a matching makes of ``count`` items, by first item."""
    chains = []
    for start in sorted(set(range(count)) - set(successor_of.values())):
        chain = [start]
        while chain[-1] in successor_of:
            chain.append(successor_of[chain[-1]])
        chains.append(chain)
    return chains
