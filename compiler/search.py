"""Plans of one batch size on one device in one precision, found but not compared yet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from msgspec import structs

from braid.compiler.choose_plan import ComparedPlans
from braid.compiler.kernels import ChosenKernels, choose_kernels
from braid.compiler.stages import StageMeasurer
from braid.compiler.work import Work
from braid.core.errors import DeviceOutOfMemory, InvalidRequest, PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.margins import PRECISION_RATIO
from braid.core.measurement import PlanMeasurement
from braid.core.plan import verify_plan
from braid.core.precision import FP32
from braid.core.program import PlansToCompare
from braid.engine.link.messages import ComparePlans, DescribeProgram, FindFacts
from braid.scheduler.planners import Planned

log = logging.getLogger("braid.jobs")


SURELY = 0.5
"""Part of what usual kernels leave of the allowed error that others may take in one run."""


@dataclass(frozen=True, slots=True)
class FoundPlans:
    """Plans of a program, ready to be compared."""

    graph: OpGraph
    kernels: ChosenKernels
    planned: Sequence[Planned]  # all that the planner found
    plans: ComparedPlans
    tolerance: float  # of outputs, relative to the largest element
    stages_measured: int = 0
    stages_reused: int = 0

    @property
    def to_compare(self) -> PlansToCompare:
        program, plans = self.kernels.program, self.plans
        return PlansToCompare(program, tuple(plans.plans), plans.runtimes, self.tolerance)

    def without(self, engine: str) -> FoundPlans:
        """The same without what an engine runs, or has a part in."""
        plans = self.plans
        planned = [
            plan
            for plan in plans.planned
            if engine not in (part.engine for part in plan.plan.parts)
        ]
        runtimes = [name for name in plans.runtimes if name != engine]
        left = replace(plans, planned=tuple(planned), runtimes=tuple(runtimes))
        return replace(self, plans=left)


async def search_plans(work: Work, precision: str = "") -> FoundPlans:
    """Profile the units of a program and search its plans; empty: in the usual precision."""
    device, retry = work.device, work.retry
    settings, usual = work.imported.options.planner, work.program(precision)
    graph = (await retry(lambda: device.ask(DescribeProgram(usual)))).graph
    kernels = await choose_kernels(graph, usual, device, work.cache, retry)
    if kernels.program != usual and not await _is_exact_enough(work, graph, kernels):
        kernels = replace(kernels, by_unit={}, program=usual)
    facts = await retry(lambda: device.ask(FindFacts(kernels.program)))
    runtimes = work.runtimes(usual.precision)
    if work.is_portfolio and usual.precision == FP32 and device.name.startswith("cpu"):
        present = {name: device.software[name] for name in runtimes if name in device.software}
        facts = structs.replace(facts, engines=present, rows=work.rows_apart)
    stages = StageMeasurer(kernels.program, device, work.cache, work.report, retry)
    planned = await retry(
        lambda: work.options.planner(graph, settings, facts, stages.measure),
        lambda: stages.measured,
    )
    for plan in planned:
        verify_plan(plan.plan, graph.predecessors())
    return FoundPlans(
        graph,
        kernels,
        planned,
        _compared(work, usual.precision, planned, graph, runtimes),
        work.tolerance(usual.precision, graph),
        stages.measured,
        stages.reused,
    )


async def _is_exact_enough(work: Work, graph: OpGraph, kernels: ChosenKernels) -> bool:
    """Whether a run of the sequential plan says that these kernels err little more.

    The sequential plan serves however much it errs, and some kernels round more than the usual.
    """
    precision = kernels.program.precision
    plans = _compared(work, precision, (), graph, work.runtimes(precision))
    allowed = work.tolerance(precision, graph)
    both = (ChosenKernels({}, replace(kernels.program, choices=())), kernels)
    fields = [FoundPlans(graph, choice, (), plans, allowed) for choice in both]
    tried = await _tried(work, fields, is_timed=False)
    usual, chosen = (inf if run.max_rel_error is None else run.max_rel_error for run in tried)
    if chosen <= usual + SURELY * max(0.0, allowed - usual):
        return True
    facts = {"precision": precision, "error": chosen, "usual": usual, "allowed": allowed}
    log.warning("the fastest kernels err too much: the usual ones run", extra=facts)
    return False


def _compared(
    work: Work,
    precision: str,
    planned: Sequence[Planned],
    graph: OpGraph,
    runtimes: Sequence[str],
) -> ComparedPlans:
    named = precision if work.is_auto else ""
    return ComparedPlans.of(planned, len(graph.operators), runtimes, named)


async def in_other_precisions(work: Work, exact: FoundPlans) -> list[FoundPlans]:
    """Plans in each other precision of the device; of hopeless ones the sequential plan only.

    A precision that the device cannot run the model in is left out.
    """
    others: list[FoundPlans] = []
    for precision in work.other_precisions:
        if precision not in work.left_out:
            try:
                others.append(await sequential_plans(work, precision))
            except (InvalidRequest, PreconditionFailed, DeviceOutOfMemory) as error:
                work.left_out[precision] = str(error)
                facts = {"precision": precision, "reason": str(error)}
                log.warning("a precision is left out", extra=facts)
    if not others:
        return []
    tried = await work.retry(lambda: _tried(work, [exact, *others]))
    searched = []
    for other, measured in zip(others, tried[1:], strict=True):
        program = other.kernels.program
        is_hopeful = _is_hopeful(measured, tried[0], other.tolerance)
        searched.append(await search_plans(work, program.precision) if is_hopeful else other)
    return searched


async def sequential_plans(work: Work, precision: str = "") -> FoundPlans:
    """Sequential plan of a precision on its usual kernels; nothing is measured."""
    program = work.program(precision)
    graph = (await work.retry(lambda: work.device.ask(DescribeProgram(program)))).graph
    plans = _compared(work, program.precision, (), graph, work.runtimes(program.precision))
    return FoundPlans(
        graph, ChosenKernels({}, program), (), plans, work.tolerance(program.precision, graph)
    )


async def _tried(
    work: Work, plans: Sequence[FoundPlans], *, is_timed: bool = True
) -> Sequence[PlanMeasurement]:
    """A few runs of the sequential plan in each precision; for its error alone, one of each."""
    fields = [
        PlansToCompare(field.kernels.program, tuple(field.plans.plans[:1]), (), field.tolerance)
        for field in plans
    ]
    request = ComparePlans(
        *(fields[0].program, tuple(fields), work.samples.path), is_brief=True, is_timed=is_timed
    )
    return (await work.device.ask(request)).plans


def _is_hopeful(brief: PlanMeasurement, exact: PlanMeasurement, tolerance: float) -> bool:
    """True if plans of a precision may serve, by a few runs of its sequential plan."""
    if brief.problem or brief.max_rel_error is None or not brief.max_rel_error <= tolerance:
        return False
    most_us = PRECISION_RATIO * (exact.latency_us or 0.0)
    return brief.latency_us is not None and brief.latency_us <= most_us
