"""One batch size on one device: from a static graph to a schedule, promoted or not.

static graph, facts ──planner <──> StageMeasurer──> plans ──contest──> verdict
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from braid.core.graph import OpGraph
from braid.core.plan import verify_plan
from braid.core.schedule import Provenance, Schedule, Stage
from braid.scheduler.options import PORTFOLIO
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph
from braid.server.jobs.imported_model import ImportedModel
from braid.server.jobs.interfaces import ServingDevice
from braid.server.jobs.progress import BatchSizeProgress
from braid.server.jobs.scheduling.choose_plan import ComparedPlans, choose_plan
from braid.server.jobs.scheduling.kernel_measurements import choose_kernels
from braid.server.jobs.scheduling.stage_measurements import StageMeasurer, in_store
from braid.server.jobs.services import JobServices


async def make_schedule(
    imported: ImportedModel,
    device: ServingDevice,
    batch_size: int,
    services: JobServices,
    progress: BatchSizeProgress,
) -> Schedule:
    """Profile, search and verify: the schedule, promoted or not."""
    options, bench = imported.model.options.planner, device.bench
    tolerance = services.tolerated_error(imported.model.options)
    retry = services.retry(progress.retrying)
    usual = imported.program(batch_size)
    graph = await retry(lambda: bench.static_graph(usual))
    kernels = await choose_kernels(graph, usual, device, services.store, retry)
    program = kernels.program
    timer = StageMeasurer(program, device, services, progress)
    facts = await retry(lambda: bench.facts(program))
    planned = await retry(
        lambda: services.planner(graph, options, facts, timer.measure), lambda: timer.learned
    )
    predecessors = graph.predecessors()
    for found in planned:
        verify_plan(found.plan, predecessors)
    choose = options.planner == PORTFOLIO
    field = ComparedPlans.of(planned, len(graph.operators), onnxruntime=choose)
    progress.comparing(0.0)
    showings = await retry(
        lambda: bench.compare(
            program,
            field.plans,
            onnxruntime=field.onnxruntime,
            tolerance=tolerance,
            on_progress=progress.comparing,
        )
    )
    verdict = choose_plan(field, showings, tolerance, choose=choose, precision=program.precision)
    chosen, served = verdict.contenders[verdict.chosen], field.planned[verdict.fallback]
    return Schedule(
        key=imported.schedule_key(device.device_key, batch_size),
        planner=chosen.name if choose or verdict.chosen == 0 else options.planner,
        plan=served.plan,
        stages=served.stages,
        unit_names=tuple(operator.name for operator in graph.operators),
        provenance=Provenance(
            predicted_us=served.predicted_us,
            measured_us=chosen.latency_us,
            sequential_us=verdict.contenders[0].latency_us,
            spread=chosen.spread,
            stages_measured=timer.measured,
            stages_reused=timer.reused,
            search_seconds=sum(found.search_seconds for found in planned),
            gap=served.gap,
            max_abs_error=showings[verdict.chosen].max_abs_error,
            max_rel_error=chosen.max_rel_error,
            tolerance=tolerance,
            promoted=not verdict.reason,
            reason=verdict.reason,
            software=device.software,
            unit_us=await _unit_latencies(graph, device, services, program.precision),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            candidates=verdict.contenders,
            kernels=kernels.by_unit,
            choices=dict(program.choices),
        ),
    )


async def _unit_latencies(
    graph: OpGraph, device: ServingDevice, services: JobServices, precision: str
) -> dict[str, float]:
    """What is known of each unit alone, by name; for those who look at the schedule later."""

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
