"""The planners by name: what each answers to a problem."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from braid.core.plan import StreamPlan
from braid.core.schedule import Stage
from braid.scheduler import ios
from braid.scheduler.branches import plan_of_branches, plan_of_rows
from braid.scheduler.counts import SearchCounts
from braid.scheduler.lazy import Budget, plan_lazily
from braid.scheduler.problem import Problem
from braid.scheduler.regions import plan_of_regions
from braid.scheduler.stages import Strategies
from braid.scheduler.stream_planners import lios, nimble, opara
from braid.scheduler.streams import StreamSchedule
from braid.scheduler.waves import greedy, rammer


@dataclass(frozen=True, slots=True)
class PlannerResult:
    """Result of a planner: stages, or streams where it knows no stages."""

    stages: tuple[Stage, ...] = ()
    streams: StreamSchedule | None = None
    counts: SearchCounts = field(default_factory=SearchCounts)
    gap: float | None = None


Planner = Callable[[Problem], PlannerResult]


def _in_stages(planner: Callable[[Problem], list[Stage]]) -> Planner:
    return lambda problem: PlannerResult(tuple(planner(problem)))


def _on_streams(planner: Callable[[Problem], StreamSchedule]) -> Planner:
    return lambda problem: PlannerResult(streams=planner(problem))


def _exhaustive(*, concurrent: bool = True, merge: bool = True) -> Planner:
    def planner(problem: Problem) -> PlannerResult:
        merge_groups = problem.facts.merge_groups if merge else ()
        stages, counts = ios.plan_exhaustively(problem, Strategies(concurrent, merge_groups))
        return PlannerResult(tuple(stages), counts=counts, gap=0.0)

    return planner


def _lazy_ios(problem: Problem) -> PlannerResult:
    seconds = problem.options.time_budget_s
    deadline = time.monotonic() + (math.inf if seconds is None else seconds)
    budget = Budget(problem.options.gap, deadline)
    stages, counts = plan_lazily(problem, budget)
    return PlannerResult(tuple(stages), counts=counts, gap=budget.proved_gap)


PLANNERS: Mapping[str, Planner] = {
    "sequential": _in_stages(lambda p: [p.stage([[unit]]) for unit in range(len(p.units))]),
    "greedy": _in_stages(greedy),
    "rammer": _in_stages(rammer),
    "ios-merge": _exhaustive(concurrent=False),
    "ios-parallel": _exhaustive(merge=False),
    "ios": _exhaustive(),
    "lazy-ios": _lazy_ios,
    "lios": _on_streams(lios),
    "opara": _on_streams(opara),
    "nimble": _on_streams(nimble),
}

PartsPlanner = Callable[[Problem], tuple[StreamPlan, tuple[Stage, ...]] | None]
"""Returns a plan with its stages, whose latencies add up to its own; None: none is to be compared.
"""

IN_PARTS: Mapping[str, PartsPlanner] = {
    "regions": plan_of_regions,
    "branches": plan_of_branches,
    "rows": plan_of_rows,
}
"""Planners whose plans have long parts in engines or on lanes; the portfolio asks them."""
