"""What a worker measures between inferences: facts, stages, whole models.

Each measurement is a task: a generator that yields after each repetition, so that a request waits
for one repetition at most.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial

from braid.core.errors import DeviceOutOfMemory, InvalidArtefact, PreconditionFailed
from braid.core.measurement import DeviceFacts, StageOverheads
from braid.core.plan import StreamPlan
from braid.core.precision import FP32
from braid.core.program import UnitKernels
from braid.engine.device import AskedStage, Backend, Prepared, Whole
from braid.engine.link.messages import (
    AnyReply,
    ComparePlans,
    CompareThroughput,
    FindFacts,
    FindKernels,
    MeasureStage,
    PlanMeasurements,
    ProgramKernels,
)
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Program
from braid.engine.runtime.priority import thread_gives_way
from braid.engine.runtime.yielding import YieldToRequests, in_thread
from braid.engine.timing.comparison import ComparisonOptions, compare
from braid.engine.timing.contenders import TimedContender
from braid.engine.timing.runs import TimedRun, timed_aside
from braid.engine.worker.models import ModelTable, seeded_inputs, static_tensors
from braid.engine.worker.throughput import Throughput

Task = Generator[float | None, None, AnyReply]
"""Yields whenever a request may go first; a number is the fraction done."""


class Measurements:
    """Handlers of measurements on one device; each is a task."""

    def __init__(self, backend: Backend, models: ModelTable, pause: YieldToRequests) -> None:
        self._backend = backend
        self._models = models
        self._pause = pause
        self._overheads: StageOverheads | None = None

    def forget(self) -> None:
        """Free memory that is kept from one measurement to the next."""
        self._backend.forget()

    def facts(self, request: FindFacts) -> Task:
        """Find facts about the device and the units of a program."""
        program = self._models.program(request.program)
        if self._overheads is None:
            self._overheads = yield from self._backend.overheads()
        graph = program.graph
        profiles = tuple(self._backend.profile(unit, graph) for unit in graph.operators)
        merges = tuple(map(tuple, merge_groups(graph)))
        return DeviceFacts(self._overheads, profiles, merges, self._backend.threads)

    def kernels(self, request: FindKernels) -> Task:
        """Find kernel signatures with several variants, the usual one first, and their units."""
        program = self._models.program(request.program)
        source = program.binding.source
        units, variants = dict[str, list[int]](), dict[str, tuple[str, ...]]()
        for unit, operator in enumerate(program.graph.operators):
            signature = source.signature(operator, program.graph)
            if signature not in units:
                variants[signature] = tuple(kernel.variant for kernel in program.rivals(unit))
                units[signature] = []
                yield None
            units[signature].append(unit)
        return ProgramKernels(
            tuple(
                UnitKernels(signature, tuple(units[signature]), several)
                for signature, several in variants.items()
                if len(several) > 1
            )
        )

    def measure(self, request: MeasureStage) -> Task:
        """Measure one stage; with a variant, its only unit on that kernel."""
        key = request.program
        program = self._models.program(key)
        stage = AskedStage(
            request.stage.groups, request.threads, request.stage.strategy, request.hopeless_us
        )
        if request.variant:
            ((unit,),) = stage.groups
            program = program.with_variant(unit, request.variant)
        inputs = partial(seeded_inputs, program.graph, static_tensors(key), 0)
        timing = yield from self._backend.measure(program, inputs, stage, self._pause)
        return timing

    def compare(self, request: ComparePlans) -> Task:
        """Compare whole models in turns: errors of outputs, and latencies."""
        self.forget()
        key = request.program
        program = self._models.program(key)
        inputs = seeded_inputs(program.graph, static_tensors(key), 1)
        prepared: list[Prepared] = []
        try:
            contenders = [self._plan_contender(program, p, prepared) for p in request.plans]
            contenders += [self._whole_contender(key.digest, name) for name in request.runtimes]
            exact = self._models.program(replace(key, precision=FP32))
            reference = self._backend.interpret(exact, inputs, self._pause)
            yield None
            options = ComparisonOptions(tolerance=request.tolerance)
            results = yield from compare(contenders, inputs, reference, options, self._pause)
        finally:
            for ready in prepared:
                ready.release()
            self.forget()
        return PlanMeasurements(tuple(results))

    def throughput(self, request: CompareThroughput) -> Task:
        """Compare runs side by side with runs one after the other."""
        yield None
        return Throughput(self._models, request, self._pause).run(self._backend.threads)

    def _plan_contender(
        self, program: Program, plan: StreamPlan, prepared: list[Prepared]
    ) -> TimedContender:
        """Prepare a plan for a comparison; a plan without room is a contender that cannot run."""
        try:
            ready = self._models.ready(program, plan)
        except DeviceOutOfMemory as error:
            return TimedContender(_absent, problem=str(error))
        prepared.append(ready)
        return self._backend.contender(ready)

    def _whole_contender(self, digest: str, runtime: str) -> TimedContender:
        """Open a whole model for a comparison, whose threads give way to requests."""
        artefact = self._models.model(digest).artefact

        def opened() -> Whole:
            thread_gives_way()
            return self._backend.open_whole(runtime, artefact, digest)

        try:
            whole = in_thread(opened, self._pause)
        except (PreconditionFailed, InvalidArtefact) as error:
            return TimedContender(_absent, problem=str(error))
        return TimedContender(timed_aside(whole.run))


def _absent(*_: object) -> TimedRun:
    raise PreconditionFailed("it could not be prepared")
