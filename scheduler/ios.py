"""Exact inter-operator scheduling by dynamic programming over sets of units.

Implements Algorithm 1 of IOS (Ding et al., MLSys 2021, section 4.1) without recursion: states
are visited by increasing size, so that cost[S - E] is known when S needs it.

    Endings (scheduler/endings.py) ──> find_schedule <──asks── StageTable (scheduler/stages.py)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from braid.core.schedule import Stage
from braid.scheduler.blocks import Units
from braid.scheduler.counts import SearchCounts
from braid.scheduler.endings import Endings
from braid.scheduler.problem import Problem
from braid.scheduler.stages import StageTable, Strategies


@dataclass(frozen=True, slots=True)
class Solution:
    """The optimum of one block."""

    endings: tuple[int, ...]  # the stages as sets of units, first stage first
    cost_us: Mapping[int, float]  # of every state
    transitions: int


def find_schedule(endings: Endings, latency_us: Mapping[int, float]) -> Solution:
    """Return the fastest list of stages of one block.

    For every set S of unscheduled units, tries each ending E of S as the last stage:

        cost[S] = min over E of  cost[S - E] + latency[E],      cost[{}] = 0

    Cost: O((n/d + 1)^(2d)) pairs (S, E) without pruning, d the width of the block, and
    O((n/d + 1)^d (r + 1)^s) with it (IOS, sections 4.2 and 4.3).
    """
    cost = {0: 0.0}
    transitions = 0
    for S in endings.states:
        if S:
            last = endings.of(S)
            cost[S] = min([cost[S ^ E] + latency_us[E] for E in last])
            transitions += len(last)
    choices = tuple(_last_stages(endings, latency_us, cost))
    return Solution(choices[::-1], cost, transitions)


def _last_stages(
    endings: Endings, latency_us: Mapping[int, float], cost: Mapping[int, float]
) -> Iterator[int]:
    """Read the choices back from the costs, last stage first (Algorithm 1, lines 6-11).

    Of equally good ones, the ending with the latest units, to stay close to the graph's order.
    """
    S = endings.everything
    while S:
        choice = max(E for E in endings.of(S) if cost[S ^ E] + latency_us[E] == cost[S])
        yield choice
        S ^= choice


def count_schedules(endings: Endings) -> int:
    """Number of different lists of stages of a block within the limits, exactly.

    schedules[S] = sum over E of schedules[S - E],      schedules[{}] = 1
    """
    schedules = {0: 1}
    for S in endings.states:
        if S:
            schedules[S] = sum([schedules[S ^ E] for E in endings.of(S)])
    return schedules[endings.everything]


def plan_exhaustively(problem: Problem, strategies: Strategies) -> tuple[list[Stage], SearchCounts]:
    """The optimum of each block, one after the other; equal blocks are solved once."""
    stages: list[Stage] = []
    counts = SearchCounts()
    solved: dict[str, tuple[Units, list[Stage]]] = {}
    for block, signature in problem.blocks():
        if signature not in solved:
            space = problem.open(block, strategies)
            table = StageTable(space, problem.memo)
            solution = find_schedule(space.endings, table)
            solved[signature] = block, [table.stage(ending) for ending in solution.endings]
            counts += SearchCounts(states=len(solution.cost_us), transitions=solution.transitions)
        first, block_stages = solved[signature]
        stages += [rename(stage, dict(zip(first, block, strict=True))) for stage in block_stages]
    return stages, counts


def rename(stage: Stage, units: Mapping[int, int]) -> Stage:
    groups = tuple(tuple(units[unit] for unit in group) for group in stage.groups)
    return replace(stage, groups=groups)
