"""Entry points: make a plan, or say beforehand which stages will be measured for it."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from braid.core.errors import InvalidRequest
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.plan import StreamPlan, sequential_plan
from braid.core.schedule import Stage
from braid.scheduler import ios
from braid.scheduler.cost import StageCost
from braid.scheduler.counts import SearchCounts
from braid.scheduler.dag import Dag
from braid.scheduler.lowering import lower_stages
from braid.scheduler.matching import width
from braid.scheduler.options import PlannerSettings
from braid.scheduler.problem import Problem
from braid.scheduler.registry import PLANNERS, Planner, PlannerResult
from braid.scheduler.stages import StageMemo, Strategies
from braid.scheduler.streams import StreamSchedule, lower_streams, makespan_us
from braid.scheduler.units import UnitGraph, as_units


@dataclass(frozen=True, slots=True)
class Planned:
    """Plan of one static graph, and what its planner knows of it."""

    planner: str  # with its options, as ``PlannerSettings.parse`` reads them
    plan: StreamPlan
    stages: tuple[Stage, ...]  # empty for planners that make stream plans without stages
    predicted_us: float | None = None  # sum of the stages, or of units that disturb no other
    search_seconds: float = 0.0  # CPU time of the search alone, without measuring
    gap: float | None = None  # proved distance to the optimum within the limits; None: no claim
    also: tuple[str, ...] = ()  # other planners that found the same plan
    counts: SearchCounts = field(default_factory=SearchCounts)
    streams: StreamSchedule | None = None  # as the planner wants them, before they are folded


def plan(
    graph: OpGraph | UnitGraph,
    cost: StageCost,
    options: PlannerSettings,
    facts: DeviceFacts | None = None,
) -> Planned:
    """Plan a static graph; ``cost`` is asked for the latency of each distinct stage once.

    Lazy-ios, opara and merging need ``facts``. Raises SearchTooLarge: a block has too many states
    for the exact search. Raises InvalidRequest for the portfolio: see ``portfolio.candidates``.
    """
    started = time.process_time()
    problem = Problem(as_units(graph), StageMemo(cost), options, facts or DeviceFacts())
    with _no_garbage_collection():
        result = _planner(options.planner)(problem)
    lowered, predicted_us = _lower(problem, result)
    counts = replace(
        result.counts,
        operators=len(problem.units),
        width=width(Dag.of(problem.units.predecessors)),
        stages_measured=len(problem.memo.latency_us),
    )
    return Planned(
        planner=options.text,
        plan=lowered,
        stages=result.stages,
        predicted_us=predicted_us,
        search_seconds=time.process_time() - started,
        gap=result.gap,
        counts=counts,
        streams=result.streams,
    )


def stages_to_measure(
    graph: OpGraph | UnitGraph, options: PlannerSettings, facts: DeviceFacts | None = None
) -> list[Stage]:
    """Stages whose latency ``plan`` is certain to ask for, one per distinct signature.

    Only lazy-ios, rammer and the portfolio ask for more, depending on the answers.
    """
    recorder = _Recorder()
    problem = Problem(as_units(graph), StageMemo(recorder), options, facts or DeviceFacts())
    if options.planner in ("lazy-ios", "rammer", "portfolio"):
        problem.unit_latencies_us()
    else:
        with _no_garbage_collection():
            _lower(problem, _planner(options.planner)(problem))
    return recorder.asked


def count_schedules(graph: OpGraph | UnitGraph, options: PlannerSettings) -> int:
    """Number of schedules among which the exact planners choose, blocks multiplied; exact."""
    problem = Problem(as_units(graph), StageMemo(_Recorder()), options, DeviceFacts())
    counts: dict[str, int] = {}
    product = 1
    for block, signature in problem.blocks():
        if signature not in counts:
            endings = problem.open(block, Strategies()).endings
            counts[signature] = ios.count_schedules(endings)
        product *= counts[signature]
    return product


def _planner(name: str) -> Planner:
    if name not in PLANNERS:
        raise InvalidRequest(f"{name} makes no single plan; ask for its candidates")
    return PLANNERS[name]


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


def _lower(problem: Problem, result: PlannerResult) -> tuple[StreamPlan, float]:
    predecessors, options = problem.units.predecessors, problem.options
    if result.streams is not None:
        lowered = lower_streams(result.streams, predecessors, options.max_streams)
        return lowered, makespan_us(lowered, problem.unit_latencies_us())
    predicted_us = sum(stage.latency_us or 0.0 for stage in result.stages)
    if options.planner == "sequential":
        return sequential_plan(len(problem.units)), predicted_us
    known_us = problem.known_unit_latencies_us()
    streams = options.max_streams
    return (
        lower_stages(result.stages, predecessors, known_us, streams, options.join),
        predicted_us,
    )
