"""Nimble: as few streams as full concurrency allows (Kwon et al., NeurIPS 2020, section 4.2).

1. The minimum equivalent graph: edges that a longer path implies are dropped.
2. A maximum matching between units and their successors in it. Matched units share a stream, so
   the units fall into chains, and the fewest synchronisations remain.
3. As in the authors' code: a second matching joins a chain to one that can only start after it,
   which reuses the stream (28 chains of GoogLeNet become 4 streams).

Units launch in the order of the graph. The authors' code waits on all parents in other streams;
here events that others imply are dropped (scheduler/streams.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from braid.scheduler.dag import Dag, bits
from braid.scheduler.matching import maximum_matching
from braid.scheduler.problem import Problem
from braid.scheduler.streams import StreamSchedule


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
