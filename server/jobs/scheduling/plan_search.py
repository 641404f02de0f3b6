"""Plans of one batch size on one device in one precision, found but not compared yet.

program ──kernels, facts──> planner <──> StageMeasurer ──> FoundPlans ──> comparison
   └─ other precisions: a few runs of their sequential plans ──wrong, hopeless──> no search
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from braid.core.errors import DeviceOutOfMemory, InvalidRequest, PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.measurement import PlanMeasurement
from braid.core.plan import verify_plan
from braid.core.precision import AUTO, FP32, INT8, allowed_in
from braid.core.program import PlansToCompare, ProgramKey
from braid.core.quantisation import Quantisation
from braid.core.runtimes import runtimes_in
from braid.scheduler.options import PORTFOLIO
from braid.scheduler.planners import Planned
from braid.server.jobs.imported_model import ImportedModel
from braid.server.jobs.interfaces import ServingDevice
from braid.server.jobs.progress import BatchSizeProgress
from braid.server.jobs.retries import RetryWhileRestarting
from braid.server.jobs.scheduling.choose_plan import ComparedPlans
from braid.server.jobs.scheduling.kernel_measurements import ChosenKernels, choose_kernels
from braid.server.jobs.scheduling.precision.given_samples import GivenSamples
from braid.server.jobs.scheduling.stage_measurements import StageMeasurer
from braid.server.jobs.services import JobServices

log = logging.getLogger("braid.jobs")

HOPELESS = 1.25
"""A precision whose sequential plan takes this many times as long as FP32's is not searched."""

MOST_DISTURBED = 0.1
"""Part of a search's measurements that may have been taken while other processes had the cores."""

SURELY = 0.5
"""Part of what usual kernels leave of the allowed error that others may take in a few runs."""


@dataclass(frozen=True, slots=True)
class Work:
    """One batch size of a model on one device, and what it is scheduled with."""

    imported: ImportedModel
    device: ServingDevice
    batch_size: int
    services: JobServices
    progress: BatchSizeProgress
    samples: GivenSamples
    quantisation: Quantisation | None = None  # of INT8; None: that takes no part
    left_out: dict[str, str] = field(default_factory=dict)  # precision -> why

    def program(self, precision: str = "") -> ProgramKey:
        """Program on its usual kernels; in the usual precision if that is empty."""
        usual = self.imported.program(self.batch_size, precision)
        if usual.precision != INT8 or self.quantisation is None:
            return usual
        return replace(usual, quantisation=self.quantisation.text)

    @property
    def is_auto(self) -> bool:
        """True if the precision is to be chosen."""
        return self.imported.model.options.precision == AUTO

    @property
    def retry(self) -> RetryWhileRestarting:
        """Retries of calls to the device, which are reported."""
        return self.services.retry(self.progress.retrying)

    def runtimes(self, precision: str) -> tuple[str, ...]:
        """Other runtimes that take part in a precision."""
        is_portfolio = self.imported.model.options.planner.planner == PORTFOLIO
        return runtimes_in(precision, self.device.runtimes) if is_portfolio else ()

    def tolerance(self, precision: str, graph: OpGraph) -> float:
        """Allowed error of outputs in a precision, relative to the largest element of each."""
        options = self.imported.model.options
        if not self.is_auto:
            allowed = self.services.tolerated_error(options)
            return allowed if options.accepted_error is not None else allowed_in(allowed, graph)
        allowed = self.services.tolerated_in(precision, options)
        return allowed_in(allowed, graph) if precision == FP32 else allowed


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
    stages_disturbed: int = 0

    @property
    def doubt(self) -> str:
        """Why the search rests on figures that tell too little; empty: it does not."""
        kernels = self.kernels
        measured = self.stages_measured + kernels.measured
        disturbed = self.stages_disturbed + kernels.disturbed
        if disturbed <= MOST_DISTURBED * measured:
            return ""
        return (
            f"other processes had the cores in {disturbed} of the {measured} measurements of its "
            "stages"
        )

    @property
    def to_compare(self) -> PlansToCompare:
        """What the device is given."""
        program, plans = self.kernels.program, self.plans
        return PlansToCompare(program, tuple(plans.plans), plans.runtimes, self.tolerance)


async def search_plans(work: Work, precision: str = "") -> FoundPlans:
    """Profile the units of a program and search its plans; empty: in the usual precision."""
    device, services, retry = work.device, work.services, work.retry
    planner, usual = work.imported.model.options.planner, work.program(precision)
    graph = await retry(lambda: device.bench.static_graph(usual))
    kernels = await choose_kernels(graph, usual, device, services.store, retry)
    if kernels.program != usual and not await _is_exact_enough(work, graph, kernels):
        kernels = replace(kernels, by_unit={}, program=usual)
    stages = StageMeasurer(kernels.program, device, services, work.progress)
    facts = await retry(lambda: device.bench.facts(kernels.program))
    planned = await retry(
        lambda: services.planner(graph, planner, facts, stages.measure), lambda: stages.learned
    )
    for found in planned:
        verify_plan(found.plan, graph.predecessors())
    return FoundPlans(
        graph,
        kernels,
        planned,
        _compared(work, usual.precision, planned, graph),
        work.tolerance(usual.precision, graph),
        stages.measured,
        stages.reused,
        stages.disturbed,
    )


async def _is_exact_enough(work: Work, graph: OpGraph, kernels: ChosenKernels) -> bool:
    """Whether a few runs of the sequential plan say that these kernels err little more.

    The sequential plan serves however much it errs, and some kernels round more than the usual.
    """
    precision = kernels.program.precision
    plans, allowed = _compared(work, precision, (), graph), work.tolerance(precision, graph)
    both = (ChosenKernels({}, replace(kernels.program, choices=())), kernels)
    tried = await _tried(work, [FoundPlans(graph, each, (), plans, allowed) for each in both])
    usual, chosen = (inf if each.max_rel_error is None else each.max_rel_error for each in tried)
    if chosen <= usual + SURELY * max(0.0, allowed - usual):
        return True
    facts = {"precision": precision, "error": chosen, "usual": usual, "allowed": allowed}
    log.warning("the fastest kernels err too much: the usual ones run", extra=facts)
    return False


def _compared(
    work: Work, precision: str, planned: Sequence[Planned], graph: OpGraph
) -> ComparedPlans:
    named = precision if work.is_auto else ""
    return ComparedPlans.of(planned, len(graph.operators), work.runtimes(precision), named)


async def in_other_precisions(work: Work, exact: FoundPlans) -> list[FoundPlans]:
    """Plans in each other precision of the device; of hopeless ones the sequential plan only.

    A precision that the device cannot run the model in is left out.
    """
    others: list[FoundPlans] = []
    for precision in work.device.precisions:
        if precision != FP32 and precision not in work.left_out:
            try:
                others.append(await _sequential(work, precision))
            except (InvalidRequest, PreconditionFailed, DeviceOutOfMemory) as error:
                work.left_out[precision] = str(error)
                facts = {"precision": precision, "reason": str(error)}
                log.warning("a precision is left out", extra=facts)
    if not others:
        return []
    tried = await work.retry(lambda: _tried(work, [exact, *others]))
    found = []
    for other, measured in zip(others, tried[1:], strict=True):
        program = other.kernels.program
        is_hopeful = _is_hopeful(measured, tried[0], other.tolerance)
        found.append(await search_plans(work, program.precision) if is_hopeful else other)
    return found


async def _sequential(work: Work, precision: str) -> FoundPlans:
    """Sequential plan of a precision on its usual kernels; nothing is measured."""
    program = work.program(precision)
    graph = await work.retry(lambda: work.device.bench.static_graph(program))
    plans = _compared(work, precision, (), graph)
    return FoundPlans(
        graph, ChosenKernels({}, program), (), plans, work.tolerance(precision, graph)
    )


async def _tried(work: Work, found: Sequence[FoundPlans]) -> Sequence[PlanMeasurement]:
    """A few runs of the sequential plan in each precision."""
    fields = [
        PlansToCompare(each.kernels.program, tuple(each.plans.plans[:1]), (), each.tolerance)
        for each in found
    ]
    return await work.device.bench.compare(
        fields, on_progress=lambda _: None, samples=work.samples.path, is_brief=True
    )


def _is_hopeful(one: PlanMeasurement, exact: PlanMeasurement, tolerance: float) -> bool:
    """True if plans of a precision may serve, by a few runs of its sequential plan."""
    if one.problem or one.max_rel_error is None or not one.max_rel_error <= tolerance:
        return False
    if one.doubt:  # it may be as slow as that by chance
        return True
    return one.latency_us is not None and one.latency_us <= HOPELESS * (exact.latency_us or 0.0)
