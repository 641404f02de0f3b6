"""What a worker measures between inferences: facts, stages, whole models.

Each measurement is a task: a generator that yields after each repetition, so that a request waits
for one repetition at most.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf

from braid.core.errors import (
    DeviceOutOfMemory,
    InvalidArtefact,
    InvalidRequest,
    PreconditionFailed,
)
from braid.core.margins import PART_RATIO
from braid.core.measurement import DeviceFacts, StageOverheads
from braid.core.plan import EnginePart, StreamPlan
from braid.core.precision import FP32, HALF, INT8
from braid.core.program import PlansToCompare, ProgramKey, UnitKernels
from braid.core.quantisation import Quantisation
from braid.engine.device import AskedStage, Backend, Prepared, open_whole
from braid.engine.link.messages import (
    AnyReply,
    Calibrate,
    Calibrated,
    ComparePlans,
    CompareThroughput,
    FindFacts,
    FindKernels,
    MeasureParts,
    MeasureStage,
    PartMeasurement,
    PartMeasurements,
    PlanMeasurements,
    ProgramKernels,
)
from braid.engine.ops.dtypes import tensors_of
from braid.engine.passes.quantised.candidates import Candidates
from braid.engine.program.engines import Whole
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Program
from braid.engine.runtime.arrays import Array, Arrays
from braid.engine.runtime.priority import thread_gives_way
from braid.engine.runtime.yielding import YieldToRequests, in_thread
from braid.engine.timing.comparison import Check, ComparisonOptions, compare
from braid.engine.timing.contenders import TimedContender, TimedRun
from braid.engine.timing.rounds import RoundOptions
from braid.engine.worker.checked_inputs import inputs_to_check
from braid.engine.worker.engine_parts import border_of, check_part
from braid.engine.worker.measuring.calibration import calibrated
from braid.engine.worker.measuring.lost_numbers import most_lost
from braid.engine.worker.measuring.sensitivity import most_rounded
from braid.engine.worker.measuring.throughput import Throughput
from braid.engine.worker.models import ModelTable, result_memory, seeded_inputs

Task = Generator[float | None, None, AnyReply]  # a number is the fraction done


class Measurements:
    """Handlers of measurements on one device; each is a task."""

    def __init__(self, backend: Backend, models: ModelTable, pause: YieldToRequests) -> None:
        self._backend = backend
        self._models = models
        self._pause = pause
        self._overheads: StageOverheads | None = None

    def forget(self) -> None:
        self._backend.forget()

    def facts(self, request: FindFacts) -> Task:
        program = self._models.program(request.program)
        if self._overheads is None:
            self._overheads = yield from self._backend.overheads()
        graph = program.graph
        profiles = tuple(self._backend.profile(unit, graph) for unit in graph.operators)
        merges = tuple(map(tuple, merge_groups(graph)))
        return DeviceFacts(self._overheads, profiles, merges, self._backend.threads)

    def kernels(self, request: FindKernels) -> Task:
        """Find signatures that have several kernels, the usual one first, and their units."""
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
        timing = yield from self._backend.measure(program, self._seeded(key), stage, self._pause)
        return timing

    def parts(self, request: MeasureParts) -> Task:
        key, program = request.program, self._models.program(request.program)
        parts, inputs = [p for stage in request.stages for p in stage], self._seeded(key)
        is_cut = any(part.engine and not part.rows for part in parts)
        of_file = self._models.engine_parts(key) if is_cut else None
        values = self._border_values(program, parts, inputs())
        measured: list[PartMeasurement] = []
        own_us: dict[frozenset[int], float] = {}
        for stage in request.stages:
            yield None
            units = frozenset(unit for part in stage for unit in part.units)
            try:
                delegated = [part for part in stage if part.engine or part.rows]
                opened = self._models.open_parts(key, delegated, of_file)
                for unit in opened.values():
                    check_part(unit, values)
                lanes = stage[:1] if stage[0].rows else stage
                is_alone = len(stage) == 1 and not delegated and stage[0].threads == 1
                asked = AskedStage(
                    [part.units for part in lanes],
                    1 if is_alone else None,
                    "concurrent",
                    PART_RATIO * own_us.get(units, inf),
                    [opened.get(part) for part in lanes],
                )
                timing = yield from self._backend.measure(program, inputs, asked, self._pause)
                if not any(part.engine for part in stage):
                    own_us.setdefault(units, timing.latency_us)
                measured.append(PartMeasurement(timing.latency_us))
            except (PreconditionFailed, InvalidRequest) as error:
                measured.append(PartMeasurement(problem=str(error)))
        self.forget()
        return PartMeasurements(tuple(measured))

    def _border_values(
        self, program: Program, parts: Iterable[EnginePart], inputs: Arrays
    ) -> Mapping[int, Array]:
        graph = program.graph
        borders = [border_of(graph, part.units) for part in parts if part.engine or part.rows]
        names = {name for border in borders for values in border for name in values}
        shown = replace(graph, outputs={name: name for name in names})
        values = self._backend.interpret(replace(program, graph=shown), inputs, self._pause)
        return {program.slots[name]: array for name, array in {**inputs, **values}.items()}

    def _seeded(self, key: ProgramKey) -> Callable[[], Arrays]:
        graph = self._models.program(key).graph
        return partial(seeded_inputs, graph, self._models.content(key), 0)

    def compare(self, request: ComparePlans) -> Task:
        self.forget()
        prepared: list[Prepared] = []
        try:
            fields = [self._contenders(field, prepared) for field in request.fields]
            tolerance = request.fields[0].tolerance
            options = ComparisonOptions(tolerance)
            if request.is_brief:
                options = ComparisonOptions.brief(tolerance)
            if not request.is_timed:
                options = replace(options, rounds=RoundOptions(0))
            contenders = [contender for field in fields for contender in field]
            most_stay = len(fields) * options.rounds.most_stay  # those of a narrow one are faster
            options = replace(options, rounds=replace(options.rounds, most_stay=most_stay))
            checks = self._checks(request)
            results = yield from compare(contenders, checks, options, self._pause)
        finally:
            for ready in prepared:
                ready.release()
            self.forget()
        first = 0
        for wanted, field in zip(request.fields, fields, strict=True):
            if (results[first].max_rel_error or 0.0) > wanted.tolerance:
                lost_in = yield from self._most_lost(wanted.program, request)
                results[first] = replace(results[first], lost_in=lost_in)
            first += len(field)
        return PlanMeasurements(tuple(results))

    def _contenders(self, field: PlansToCompare, prepared: list[Prepared]) -> list[TimedContender]:
        program = self._models.program(field.program)
        key = field.program
        contenders = [self._plan_contender(key, program, plan, prepared) for plan in field.plans]
        contenders += [self._whole_contender(field.program, name) for name in field.runtimes]
        for contender in contenders:
            contender.tolerance = field.tolerance
        return contenders

    def _checks(self, request: ComparePlans) -> Iterator[Check]:
        """Inputs that errors are measured on, with the outputs of the plain interpreter in FP32."""
        exact = self._exact(request)
        for inputs, samples in self._inputs(request):
            yield Check(inputs, self._backend.interpret(exact, inputs, self._pause), samples)
            if request.is_brief:
                return

    def _exact(self, request: ComparePlans) -> Program:
        return self._models.program(replace(request.program, precision=FP32, quantisation=""))

    def _inputs(self, request: ComparePlans) -> Iterator[tuple[dict[str, Array], int]]:
        template = self._models.model(request.program.digest).template.inputs
        graph = self._exact(request).graph
        content = self._models.content(request.program)
        return inputs_to_check(request.program, graph, template, request.samples, content)

    def _most_lost(self, key: ProgramKey, request: ComparePlans) -> Generator[None, None, str]:
        """Name the unit that loses most in a narrow precision; "" for precisions on FP32 data."""
        if key.precision not in (*HALF, INT8):
            return ""
        inputs, _ = next(self._inputs(request))
        if key.precision == INT8:
            graph, constants = self._models.static(key)
            units = Candidates(graph, constants).weighted
            how = Quantisation.parsed(key.quantisation)
            return (yield from most_rounded(graph, {**constants, **tensors_of(inputs)}, units, how))
        return (yield from most_lost(self._exact(request), self._models.program(key), inputs))

    def calibrate(self, request: Calibrate) -> Task:
        self.forget()
        if not self._backend.computes_on_integers:
            raise PreconditionFailed("this device has no instructions for 8-bit integers (VNNI)")
        how = yield from calibrated(self._backend, self._models, request, self._pause)
        return Calibrated(how)

    def throughput(self, request: CompareThroughput) -> Task:
        yield None
        return Throughput(self._models, request, self._pause).run(self._backend.threads)

    def _plan_contender(
        self, key: ProgramKey, program: Program, plan: StreamPlan, prepared: list[Prepared]
    ) -> TimedContender:
        """Prepare a plan for a comparison; one that cannot be is a contender that cannot run."""
        try:
            opened = self._models.open_parts(key, plan.parts)
            ready = self._models.ready(program, plan, opened=opened)
        except (DeviceOutOfMemory, PreconditionFailed, InvalidArtefact) as error:
            return TimedContender(_absent, problem=str(error))
        prepared.append(ready)
        return self._backend.contender(ready, result_memory(program.graph))

    def _whole_contender(self, key: ProgramKey, runtime: str) -> TimedContender:
        """Open a whole model for a comparison, whose threads give way to requests."""
        model = self._models.model(key.digest)

        def opened() -> Whole:
            thread_gives_way()
            return open_whole(
                *(self._backend, runtime, model.artefact, model.file_digest),
                precision=key.precision,
            )

        try:
            self._models.check_runtime(runtime, key)
            whole = in_thread(opened, self._pause)
        except (PreconditionFailed, InvalidArtefact) as error:
            return TimedContender(_absent, problem=str(error))
        outputs = result_memory(self._models.program(key).graph)
        return replace(self._backend.whole_contender(whole, outputs), is_runtime=True)


def _absent(*_: object) -> TimedRun:
    raise PreconditionFailed("it could not be prepared")
