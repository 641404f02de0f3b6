"""The planners by name: what each answers to a problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from braid.core.schedule import Stage
from braid.scheduler import ios
from braid.scheduler.counts import SearchCounts
from braid.scheduler.lazy import Budget, plan_lazily
from braid.scheduler.lios import lios
from braid.scheduler.nimble import nimble
from braid.scheduler.opara import opara
from braid.scheduler.problem import Problem
from braid.scheduler.stages import Strategies
from braid.scheduler.streams import StreamSchedule
from braid.scheduler.waves import greedy, rammer


@dataclass(frozen=True, slots=True)
class Found:
    """What a planner answers: stages, or streams where it knows no stages."""

    stages: tuple[Stage, ...] = ()
    streams: StreamSchedule | None = None
    counts: SearchCounts = field(default_factory=SearchCounts)
    gap: float | None = None


def _sequential(problem: Problem) -> Found:
    return Found(tuple(problem.stage([[unit]]) for unit in range(len(problem.units))))


def _greedy(problem: Problem) -> Found:
    return Found(tuple(greedy(problem)))


def _rammer(problem: Problem) -> Found:
    return Found(tuple(rammer(problem)))


def _ios(problem: Problem) -> Found:
    return _exhaustive(problem, Strategies(merge_groups=problem.facts.merge_groups))


def _ios_parallel(problem: Problem) -> Found:
    return _exhaustive(problem, Strategies())


def _ios_merge(problem: Problem) -> Found:
    return _exhaustive(
        problem, Strategies(concurrent=False, merge_groups=problem.facts.merge_groups)
    )


def _exhaustive(problem: Problem, strategies: Strategies) -> Found:
    stages, counts = ios.plan_exhaustively(problem, strategies)
    return Found(tuple(stages), counts=counts, gap=0.0)


def _lazy_ios(problem: Problem) -> Found:
    seconds = problem.options.time_budget_s
    deadline = time.monotonic() + (math.inf if seconds is None else seconds)
    budget = Budget(problem.options.gap, deadline)
    stages, counts = plan_lazily(problem, budget)
    return Found(tuple(stages), counts=counts, gap=budget.proved_gap)


def _lios(problem: Problem) -> Found:
    return Found(streams=lios(problem))


def _opara(problem: Problem) -> Found:
    return Found(streams=opara(problem))


def _nimble(problem: Problem) -> Found:
    return Found(streams=nimble(problem))


Planner = Callable[[Problem], Found]

PLANNERS: Mapping[str, Planner] = {
    "sequential": _sequential,
    "greedy": _greedy,
    "rammer": _rammer,
    "ios-merge": _ios_merge,
    "ios-parallel": _ios_parallel,
    "ios": _ios,
    "lazy-ios": _lazy_ios,
    "lios": _lios,
    "opara": _opara,
    "nimble": _nimble,
}
