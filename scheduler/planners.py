"""Entry points: make a plan, or say beforehand which stages will be measured for it.

graph ──> planner ──stages──> lower_stages  ──┐
             └──────streams─> lower_streams ──┴──> StreamPlan
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from core.graph import OpGraph
from core.plan import StreamPlan, sequential_plan
from core.schedule import Stage
from scheduler import ios
from scheduler.cost import DeviceFacts, StageCost
from scheduler.counts import SearchCounts
from scheduler.dag import Dag
from scheduler.lazy import Budget, plan_lazily
from scheduler.lios import lios
from scheduler.lowering import lower_stages
from scheduler.matching import width
from scheduler.nimble import nimble
from scheduler.opara import opara
from scheduler.options import PlannerOptions
from scheduler.problem import Problem
from scheduler.stages import StageMemo, Strategies
from scheduler.streams import StreamSchedule, lower_streams, makespan_us
from scheduler.units import UnitGraph, as_units
from scheduler.waves import greedy, rammer


@dataclass(frozen=True, slots=True)
class Found:
    """What a planner answers: stages, or streams where it knows no stages."""

    stages: tuple[Stage, ...] = ()
    streams: StreamSchedule | None = None
    counts: SearchCounts = field(default_factory=SearchCounts)
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what is known about it."""

    stages: tuple[Stage, ...]  # empty for planners that make stream plans without stages
    plan: StreamPlan
    predicted_us: float  # sum of the stages; without stages, as if units never disturbed each other
    counts: SearchCounts
    search_seconds: float  # CPU time of this process, so without measuring elsewhere
    gap: float | None = None  # proved distance to the optimum within the limits; None: no claim
    streams: StreamSchedule | None = None  # as the planner wants them, before they are folded


def plan(
    graph: OpGraph | UnitGraph,
    cost: StageCost,
    options: PlannerOptions,
    facts: DeviceFacts | None = None,
) -> Planned:
    """Plan a static graph.

    Raises:
        SearchTooLarge: a block has too many states for the exact search.
    """
    started = time.process_time()
    units = as_units(graph)
    problem = Problem(units, StageMemo(cost), options, facts or DeviceFacts())
    with _no_garbage_collection():
        found = _PLANNERS[options.planner](problem)
    lowered, predicted_us = _lower(problem, found)
    counts = replace(
        found.counts,
        operators=len(units),
        width=width(Dag.of(units.predecessors)),
        stages_measured=len(problem.memo.latency_us),
    )
    seconds = time.process_time() - started
    return Planned(found.stages, lowered, predicted_us, counts, seconds, found.gap, found.streams)


def stages_to_measure(
    graph: OpGraph | UnitGraph, options: PlannerOptions, facts: DeviceFacts | None = None
) -> list[Stage]:
    """Stages whose latency ``plan`` is certain to ask for, one per distinct signature.

    For lazy-ios and rammer, what else is asked depends on the answers; for the others it is all.
    """
    recorder = _Recorder()
    problem = Problem(as_units(graph), StageMemo(recorder), options, facts or DeviceFacts())
    if options.planner in ("lazy-ios", "rammer"):
        problem.unit_latencies_us()
    else:
        _PLANNERS[options.planner](problem)
    return recorder.asked


def count_schedules(graph: OpGraph | UnitGraph, options: PlannerOptions) -> int:
    """Number of schedules among which the exact planners choose, blocks multiplied; exact."""
    problem = Problem(as_units(graph), StageMemo(_Recorder()), options, DeviceFacts())
    known: dict[str, int] = {}
    product = 1
    for block, signature in problem.blocks():
        if signature not in known:
            endings = problem.open(block, Strategies()).endings
            known[signature] = ios.count_schedules(endings)
        product *= known[signature]
    return product


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Searches make millions of small objects and no cycles; looking for some costs a fifth."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Recorder:
    """A cost that answers at once and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Stage] = []

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(stage)
        return 1.0


def _lower(problem: Problem, found: Found) -> tuple[StreamPlan, float]:
    """The stream plan, and its predicted latency."""
    predecessors, options = problem.units.predecessors, problem.options
    if found.streams is not None:
        lowered = lower_streams(found.streams, predecessors, options.max_streams)
        return lowered, makespan_us(lowered, problem.unit_latencies_us())
    predicted_us = sum(stage.latency_us or 0.0 for stage in found.stages)
    if options.planner == "sequential":
        return sequential_plan(len(problem.units)), predicted_us
    latency_us = problem.known_unit_latencies_us()
    return (
        lower_stages(found.stages, predecessors, latency_us, options.max_streams, options.barriers),
        predicted_us,
    )


def _sequential(problem: Problem) -> Found:
    return Found(tuple(problem.stage([[unit]]) for unit in range(len(problem.units))))


def _greedy(problem: Problem) -> Found:
    return Found(tuple(greedy(problem)))


def _rammer(problem: Problem) -> Found:
    return Found(tuple(rammer(problem)))


def _ios(problem: Problem) -> Found:
    return _exhaustive(problem, Strategies(merge=problem.facts.merge))


def _ios_parallel(problem: Problem) -> Found:
    return _exhaustive(problem, Strategies())


def _ios_merge(problem: Problem) -> Found:
    return _exhaustive(problem, Strategies(concurrent=False, merge=problem.facts.merge))


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


_PLANNERS: Mapping[str, Callable[[Problem], Found]] = {
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
