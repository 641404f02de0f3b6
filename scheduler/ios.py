"""Exact inter-operator scheduling by dynamic programming over sets of units.

Implements Algorithm 1 of IOS (Ding et al., MLSys 2021, section 4.1) without recursion: states
are visited by increasing size, so that cost[S - E] is known when S needs it.

    Endings (scheduler/endings.py) ──> find_schedule <──asks── StageTable (scheduler/stages.py)
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.endings import Endings


def find_schedule(endings: Endings, latency_us: Mapping[int, float], everything: int) -> list[int]:
    """Return the fastest list of stages, first stage first, each as the set of its units.

    For every set S of unscheduled units, tries each ending E of S as the last stage:

        cost[S] = min over E of  cost[S - E] + latency[E],    cost[{}] = 0

    Args:
        endings: states of the block, and the endings of each within the pruning limits.
        latency_us: latency of an ending as a stage; asked once for each (S, E).
        everything: the set of all units of the block.

    Cost: O((n/d + 1)^(2d)) pairs (S, E) without pruning, d the width of the block, and
    O((n/d + 1)^d (r + 1)^s) with it (IOS, sections 4.2 and 4.3).
    """
    cost = {0: 0.0}
    for S in endings.states:
        if S:
            cost[S] = min([cost[S ^ E] + latency_us[E] for E in endings.of(S)])
    return _last_stages(endings, latency_us, cost, everything)


def _last_stages(
    endings: Endings, latency_us: Mapping[int, float], cost: Mapping[int, float], state: int
) -> list[int]:
    """Read the choices back from the costs (IOS, Algorithm 1, lines 6-11)."""
    stages: list[int] = []
    while state:
        choice = next(
            E for E in endings.of(state) if cost[state ^ E] + latency_us[E] == cost[state]
        )
        stages.insert(0, choice)
        state ^= choice
    return stages
