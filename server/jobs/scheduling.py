"""One batch size on one device: from a static graph to a schedule, promoted or not.

static graph, facts ──planner <──> StageMeasurer──> plan ──compare──> refusal or promotion
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from core.graph import OpGraph
from core.plan import verify_plan
from core.schedule import Provenance, Schedule, Stage
from scheduler.signature import stage_signature
from scheduler.units import UnitGraph
from server.jobs.measuring import StageMeasurer, patiently
from server.jobs.ports import Device, PlanComparison, PlannedModel, Specs
from server.jobs.progress import Share
from server.jobs.workshop import Imported, Workshop, schedule_key
from server.store.records import ModelVersion

NOISE_MARGIN = 0.01
"""A plan up to this much slower, and not by more than the runs scatter, is as fast.

Two medians of one series never agree exactly, and a plan equal to the sequential one would be
refused half of the time. The margin stays below what anyone could see in a served latency.
"""


async def make_schedule(
    model: ModelVersion,
    imported: Imported,
    device: Device,
    inputs: Specs,
    batch_size: int,
    shop: Workshop,
    share: Share,
) -> Schedule:
    """Profile, search and verify: the schedule, promoted or not."""
    digest, options = model.sha256, model.options.planner
    graph = await patiently(lambda: device.static_graph(digest, batch_size, inputs))
    timer = StageMeasurer(digest, batch_size, device, shop, share)
    facts = await patiently(lambda: device.facts(digest, batch_size))
    planned = await shop.planner(graph, options, facts, timer.measure)
    verify_plan(planned.plan, graph.predecessors())
    share.verifying(timer.measured + timer.reused)
    compared = await patiently(lambda: device.compare(digest, batch_size, planned.plan))
    reason = refusal(planned, compared, shop.tolerance)
    return Schedule(
        key=schedule_key(model, imported, device.device_key, inputs, batch_size),
        planner=planned.planner,
        plan=planned.plan,
        stages=planned.stages,
        unit_names=tuple(operator.name for operator in graph.operators),
        provenance=Provenance(
            predicted_us=planned.predicted_us,
            measured_us=compared.measured_us,
            sequential_us=compared.sequential_us,
            spread=compared.spread,
            stages_measured=timer.measured,
            stages_reused=timer.reused,
            search_seconds=planned.search_seconds,
            gap=planned.gap,
            max_abs_error=compared.max_abs_error,
            max_rel_error=compared.max_rel_error,
            tolerance=shop.tolerance,
            promoted=not reason,
            reason=reason,
            software=device.software,
            unit_us=await _unit_latencies(graph, device, shop),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )


async def _unit_latencies(graph: OpGraph, device: Device, shop: Workshop) -> dict[str, float]:
    """What is known of each unit alone, by name; for those who look at the schedule later."""

    def signatures() -> dict[str, str]:
        units = UnitGraph.from_graph(graph)
        return {
            operator.name: stage_signature(units, Stage(((index,),)))
            for index, operator in enumerate(graph.operators)
        }

    named = await asyncio.to_thread(signatures)
    wanted = list(set(named.values()))
    known = await shop.store.call(shop.store.find_latencies, device.device_key, wanted)
    return {name: known[mark] for name, mark in named.items() if mark in known}


def refusal(planned: PlannedModel, compared: PlanComparison, tolerance: float) -> str:
    """Why a plan may not serve; empty if it may.

    It serves if its outputs agree with the sequential ones, and it is not slower. A plan on one
    stream is the sequential plan: there is nothing to be slower than.
    """
    if not compared.max_rel_error <= tolerance:  # also refuses NaN
        return (
            f"the sequential plan goes on serving: outputs differ by {compared.max_rel_error:.2g} "
            f"of the largest element, {tolerance:.2g} is allowed"
        )
    margin = 1.0 + min(NOISE_MARGIN, compared.spread)
    if planned.plan.streams > 1 and not compared.measured_us <= compared.sequential_us * margin:
        return (
            "the sequential plan goes on serving: the schedule takes "
            f"{compared.measured_us:.0f} us, the sequential plan {compared.sequential_us:.0f} us"
        )
    return ""
