"""One batch size on one device: from a static graph to a schedule, promoted or not.

one precision   FoundPlans ───────────────compare──> choose_plan ───────┐
auto            FoundPlans, FoundPlans ...compare──> choose_precision ──┴─> schedule

The comparison screens: which of the candidates serves for good is decided by requests.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

from braid.compiler.choose_plan import PlanChoice, choose_plan
from braid.compiler.choose_precision import PrecisionChoice, choose_precision
from braid.compiler.device import Device
from braid.compiler.imported_model import ImportedModel
from braid.compiler.report import Calibrating, Comparing, Report, Retrying
from braid.compiler.results import Cache
from braid.compiler.retries import KeepsDying, RetryWhileRestarting
from braid.compiler.samples import check_samples
from braid.compiler.search import FoundPlans, in_other_precisions, search_plans, sequential_plans
from braid.compiler.stages import unit_latencies
from braid.compiler.work import CompileOptions, Work
from braid.core.errors import DeviceOutOfMemory, InvalidRequest, PreconditionFailed, WorkerFault
from braid.core.graph import OpGraph
from braid.core.margins import CANDIDATE_RATIO
from braid.core.measurement import PlanMeasurement, SideBySideRuns
from braid.core.precision import AUTO, FP32, INT8
from braid.core.program import PlanToRun, ProgramKey
from braid.core.quantisation import Quantisation
from braid.core.schedule import Contender, PlanCandidate, Provenance, Schedule
from braid.core.sign_test import sign_test_interval
from braid.engine.link.messages import Calibrate, ComparePlans, CompareThroughput
from braid.scheduler.planners import Planned

log = logging.getLogger("braid.jobs")


@dataclass(slots=True)
class _Steps:
    """What a compilation has found: the death of a worker takes none of it back."""

    work: Work
    is_quantised: bool = False
    searched: list[FoundPlans] = field(default_factory=list)  # of each precision
    is_searched: bool = False

    def leave_out(self, runtime: str, why: str) -> None:
        """Go on without a runtime; what takes part without it is compared again."""
        self.work = replace(self.work, left_out={**self.work.left_out, runtime: why})
        self.searched = [plans.without(runtime) for plans in self.searched]


@dataclass(frozen=True, slots=True)
class _Compared:
    """Results for one batch size once a plan has been chosen."""

    work: Work
    searched: Sequence[FoundPlans]  # of each precision that took part
    measurements: Sequence[PlanMeasurement]  # of the plans, then of other runtimes, of each
    precision_choice: PrecisionChoice

    @property
    def choice(self) -> PlanChoice:
        return self.precision_choice.choice

    @property
    def chosen(self) -> Contender:
        """Contender whose plan and figures the schedule keeps."""
        return self.choice.contenders[self.choice.chosen]

    @property
    def field(self) -> FoundPlans:
        return self.searched[self.precision_choice.precision]

    @property
    def plan(self) -> Planned:
        """Plan that serves, or that runs if another runtime cannot."""
        return self.field.plans.planned[self.precision_choice.plan]

    @property
    def near_runtimes(self) -> list[str]:
        """Runtimes that are not much slower than what serves, in its precision."""
        own = "", self.field.kernels.program.precision
        present = [one for one in self.choice.contenders if one.precision in own]
        runs = {one.name: one.latency_us or inf for one in present}
        most_us = CANDIDATE_RATIO * (self.chosen.latency_us or inf)
        return [name for name in self.field.plans.runtimes if runs.get(name, inf) <= most_us]

    @property
    def others(self) -> tuple[PlanCandidate, ...]:
        """Candidates that service chooses from beside the chosen one."""
        before = self.searched[: self.precision_choice.precision]
        first = sum(len(one.plans.planned) + len(one.plans.runtimes) for one in before)
        planned, others = self.field.plans.planned, []
        own = self.plan if not self.plan.plan.parts else planned[0]
        for index in self.choice.others:
            at, contender = index - first, self.choice.contenders[index]
            found = planned[at] if at < len(planned) else own
            others.append(
                PlanCandidate(contender.name, found.plan, found.stages, contender.latency_us)
            )
        return tuple(others)


async def compile(  # as braid.compile, which calls it
    imported: ImportedModel,
    device: Device,
    batch_size: int,
    options: CompileOptions,
    cache: Cache,
    report: Report,
) -> tuple[Schedule, OpGraph]:
    """Profile, search and verify; returns the schedule, promoted or not, and its static graph.

    The device has the model loaded, and measures nothing else meanwhile. Measurements are kept in
    ``cache`` at once. Raises BraidError: there is no schedule, and why.
    """
    steps = _Steps(Work(imported, device, batch_size, options, cache, report))
    while True:
        try:
            return await _compiled(steps)
        except KeepsDying as error:
            runtime = steps.work.other_runtimes[-1]
            steps.leave_out(runtime, f"{error}, at last with it")
            facts = {"device": device.name, "runtime": runtime, "reason": str(error)}
            log.warning("a runtime is left out", extra=facts)
            report(Retrying(f"going on without {runtime}: {error}"))


async def _compiled(steps: _Steps) -> tuple[Schedule, OpGraph]:
    if not steps.is_quantised:
        steps.work, steps.is_quantised = await with_quantisation(steps.work), True
    work, searched = steps.work, steps.searched
    imported, device, options = work.imported, work.device, work.options
    if not searched:
        searched.append(await (sequential_plans if options.is_brief else search_plans)(work))
    if work.is_auto and not options.is_brief and not steps.is_searched:
        searched += await in_other_precisions(work, searched[0])
    steps.is_searched = True
    compared = await _compared(work, searched)
    planner, field = imported.options.planner, compared.field
    is_named = work.is_auto or work.is_portfolio or compared.choice.chosen == 0
    schedule = Schedule(
        key=imported.schedule_key(device.device_key, work.batch_size),
        planner=compared.chosen.name if is_named else planner.planner,
        plan=compared.plan.plan,
        stages=compared.plan.stages,
        unit_names=tuple(operator.name for operator in field.graph.operators),
        provenance=await _provenance(compared),
        others=compared.others,
    )
    if options.side_by_side and not options.is_brief:
        program, near = field.kernels.program, compared.near_runtimes
        schedule = await with_side_by_side(schedule, program, device, work.retry, runtimes=near)
    return schedule, field.graph


async def _compared(work: Work, searched: Sequence[FoundPlans]) -> _Compared:
    """Run whole models against each other, and choose what serves."""
    fields = tuple(plans.to_compare for plans in searched)
    request = ComparePlans(
        fields[0].program, fields, work.samples.path, is_brief=work.options.is_brief
    )
    work.report(Comparing(0.0))
    measured = await work.retry(
        lambda: work.device.ask(request, lambda done: work.report(Comparing(done)))
    )
    return _Compared(work, searched, measured.plans, _chosen(work, searched, measured.plans))


def _chosen(
    work: Work, searched: Sequence[FoundPlans], measured: Sequence[PlanMeasurement]
) -> PrecisionChoice:
    if work.is_auto:
        tolerances = [plans.tolerance for plans in searched]
        return choose_precision([plans.plans for plans in searched], measured, tolerances)
    (only,) = searched
    choice = choose_plan(
        only.plans,
        measured,
        only.tolerance,
        choose=work.is_portfolio,
        precision=only.kernels.program.precision,
        on_chosen_kernels=bool(only.kernels.program.choices),
    )
    return PrecisionChoice(choice, 0, choice.fallback)


async def _provenance(compared: _Compared) -> Provenance:
    work, field, choice = compared.work, compared.field, compared.choice
    chosen, plan, program = compared.chosen, compared.plan, field.kernels.program
    return Provenance(
        predicted_us=plan.predicted_us,
        measured_us=chosen.latency_us,
        sequential_us=choice.contenders[0].latency_us,
        spread=chosen.spread,
        stages_measured=sum(plans.stages_measured for plans in compared.searched),
        stages_reused=sum(plans.stages_reused for plans in compared.searched),
        search_seconds=sum(
            planned.search_seconds for plans in compared.searched for planned in plans.planned
        ),
        gap=plan.gap,
        max_abs_error=compared.measurements[choice.chosen].max_abs_error,
        max_rel_error=chosen.max_rel_error,
        tolerance=field.tolerance,
        promoted=not choice.reason,
        reason=choice.reason,
        software=work.device.software,
        unit_us=await unit_latencies(field.graph, work.cache, program.precision),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        candidates=choice.contenders,
        kernels=field.kernels.by_unit,
        choices=dict(program.choices),
        precision=program.precision if work.is_auto else "",
        samples=work.samples.count,
        top_agreement=chosen.top_agreement,
        quantisation=work.quantisation,
        left_out=work.left_out,
    )


async def with_quantisation(work: Work) -> Work:
    """Add what INT8 needs, if that takes part; with precision auto it may be left out.

    Raises InvalidRequest: the model was registered in INT8, and cannot be calibrated.
    """
    precision = work.imported.options.precision
    if precision not in (AUTO, INT8) or INT8 not in work.device.precisions:
        return work
    try:
        quantisation = await work.cache.find_quantisation() or await _measured(work)
    except (InvalidRequest, PreconditionFailed, DeviceOutOfMemory) as error:
        if precision == INT8:
            raise
        log.info("a precision is left out", extra={"precision": INT8, "reason": str(error)})
        return replace(work, left_out={**work.left_out, INT8: str(error)})
    return replace(work, quantisation=quantisation)


async def _measured(work: Work) -> Quantisation:
    check_samples(INT8, given=bool(work.samples.path))
    program = work.imported.program(1, FP32)
    tolerance = work.tolerated_in(INT8) if work.is_auto else work.tolerated_error
    request = Calibrate(program, work.samples.path, tolerance)
    work.report(Calibrating(0.0))
    found = await work.retry(
        lambda: work.device.ask(request, lambda done: work.report(Calibrating(done)))
    )
    return found.how


# Latency of the shortest network that is tried. Two at once, a MatMul of 36 us lost 7 to 9 % from
# 16 callers (2-core AMD EPYC, 2026-11-29). Where between that and a millisecond is not measured.
SHORTEST_US = 300.0


async def with_side_by_side(
    schedule: Schedule,
    program: ProgramKey,
    device: Device,
    retry: RetryWhileRestarting,
    *,
    runtimes: Sequence[str],
) -> Schedule:
    """Add to a promoted schedule how runs side by side fare beside its plan.

    ``runtimes`` may run the whole model there, as the sequential plan may.
    """
    provenance = schedule.provenance
    if not provenance.promoted or provenance.tolerance is None:
        return schedule
    if provenance.measured_us is not None and provenance.measured_us < SHORTEST_US:
        return schedule
    tolerance = provenance.tolerance
    to_run = PlanToRun(program, schedule.plan, runtime=schedule.runtime)
    try:
        request = CompareThroughput(program, to_run, ("", *runtimes), tolerance)
        measured = (await retry(lambda: device.ask(request))).ways
    except (DeviceOutOfMemory, WorkerFault) as error:  # the plan serves without it
        log.warning("runs side by side are not measured", extra={"reason": str(error)})
        return schedule
    ways = [
        SideBySideRuns(way.count, way.runtime, way.latency_us, gain)
        for way in measured
        if (gain := sign_test_interval(way.ratios)) is not None
    ]
    if not ways:
        return schedule
    best = max(ways, key=lambda way: way.gain.median)
    return replace(schedule, provenance=replace(provenance, side_by_side=best))
