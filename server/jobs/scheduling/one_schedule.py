"""One batch size on one device: from a static graph to a schedule, promoted or not.

static graph, facts ──planner <──> StageMeasurer──> plans ──compare──> choose_plan ──> schedule
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from braid.core.graph import OpGraph
from braid.core.measurement import PlanMeasurement
from braid.core.plan import verify_plan
from braid.core.precision import FP32
from braid.core.schedule import Contender, Provenance, Schedule, Stage
from braid.scheduler.options import PORTFOLIO
from braid.scheduler.planners import Planned
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph
from braid.server.jobs.imported_model import ImportedModel
from braid.server.jobs.interfaces import ServingDevice
from braid.server.jobs.progress import BatchSizeProgress
from braid.server.jobs.scheduling.choose_plan import ComparedPlans, PlanChoice, choose_plan
from braid.server.jobs.scheduling.kernel_measurements import ChosenKernels, choose_kernels
from braid.server.jobs.scheduling.stage_measurements import StageMeasurer, in_store
from braid.server.jobs.scheduling.throughput import with_side_by_side
from braid.server.jobs.services import JobServices


@dataclass(frozen=True, slots=True)
class _Compared:
    """Results for one batch size once a plan has been chosen."""

    kernels: ChosenKernels
    stages: StageMeasurer
    plans: ComparedPlans
    measurements: Sequence[PlanMeasurement]  # of the plans, then of other runtimes
    tolerance: float  # of outputs, relative to the largest element
    choice: PlanChoice

    @property
    def chosen(self) -> Contender:
        """Contender that the schedule is about."""
        return self.choice.contenders[self.choice.chosen]

    @property
    def plan(self) -> Planned:
        """Plan that serves, or that runs if another runtime cannot."""
        return self.plans.planned[self.choice.fallback]


async def make_schedule(
    imported: ImportedModel,
    device: ServingDevice,
    batch_size: int,
    services: JobServices,
    progress: BatchSizeProgress,
) -> tuple[Schedule, OpGraph]:
    """Profile, search and verify; returns the schedule, promoted or not, and its static graph."""
    options, retry = imported.model.options, services.retry(progress.retrying)
    planner, usual = options.planner, imported.program(batch_size)
    is_portfolio = planner.planner == PORTFOLIO
    exact = options.precision == FP32  # the only one in which other runtimes compute here
    runtimes = device.runtimes if is_portfolio and exact else ()
    graph = await retry(lambda: device.bench.static_graph(usual))
    kernels = await choose_kernels(graph, usual, device, services.store, retry)
    stages = StageMeasurer(kernels.program, device, services, progress)
    facts = await retry(lambda: device.bench.facts(kernels.program))
    planned = await retry(
        lambda: services.planner(graph, planner, facts, stages.measure), lambda: stages.learned
    )
    for found in planned:
        verify_plan(found.plan, graph.predecessors())
    plans = ComparedPlans.of(planned, len(graph.operators), runtimes)
    tolerance = services.tolerated_error(options)
    progress.comparing(0.0)
    compare = partial(device.bench.compare, runtimes=runtimes, on_progress=progress.comparing)
    measured = await retry(lambda: compare(kernels.program, plans.plans, tolerance=tolerance))
    precision = options.precision
    choice = choose_plan(plans, measured, tolerance, choose=is_portfolio, precision=precision)
    compared = _Compared(kernels, stages, plans, measured, tolerance, choice)
    schedule = Schedule(
        key=imported.schedule_key(device.device_key, batch_size),
        planner=compared.chosen.name if is_portfolio or choice.chosen == 0 else planner.planner,
        plan=compared.plan.plan,
        stages=compared.plan.stages,
        unit_names=tuple(operator.name for operator in graph.operators),
        provenance=await _provenance(compared, planned, graph, device, services),
    )
    if services.side_by_side:
        schedule = await with_side_by_side(
            schedule, kernels.program, device, retry, runtimes=runtimes
        )
    return schedule, graph


async def _provenance(
    compared: _Compared,
    planned: Sequence[Planned],
    graph: OpGraph,
    device: ServingDevice,
    services: JobServices,
) -> Provenance:
    """Provenance of a schedule; ``planned`` is all that the planner found."""
    chosen, plan, choice = compared.chosen, compared.plan, compared.choice
    program = compared.kernels.program
    return Provenance(
        predicted_us=plan.predicted_us,
        measured_us=chosen.latency_us,
        sequential_us=choice.contenders[0].latency_us,
        spread=chosen.spread,
        stages_measured=compared.stages.measured,
        stages_reused=compared.stages.reused,
        search_seconds=sum(found.search_seconds for found in planned),
        gap=plan.gap,
        max_abs_error=compared.measurements[choice.chosen].max_abs_error,
        max_rel_error=chosen.max_rel_error,
        tolerance=compared.tolerance,
        promoted=not choice.reason,
        reason=choice.reason,
        software=device.software,
        unit_us=await _unit_latencies(graph, device, services, program.precision),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        candidates=choice.contenders,
        kernels=compared.kernels.by_unit,
        choices=dict(program.choices),
    )


async def _unit_latencies(
    graph: OpGraph, device: ServingDevice, services: JobServices, precision: str
) -> dict[str, float]:
    """Known latencies of units alone in microseconds, by unit name, to be shown."""

    def signatures() -> dict[str, str]:
        units = UnitGraph.from_graph(graph)
        return {
            operator.name: in_store(stage_signature(units, Stage(((index,),))), precision)
            for index, operator in enumerate(graph.operators)
        }

    named = await asyncio.to_thread(signatures)
    wanted = list(set(named.values()))
    known = await services.store.call(services.store.find_latencies, device.device_key, wanted)
    return {name: known[mark] for name, mark in named.items() if mark in known}
