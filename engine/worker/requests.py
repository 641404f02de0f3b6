"""Requests that a worker answers at once: about models and executables, and runs."""

import logging
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, TypeAlias

import numpy as np
from msgspec import structs

from braid.core.errors import InvalidRequest, PreconditionFailed
from braid.core.program import ProgramKey
from braid.engine.device import Backend, FinishedRun, PendingRun
from braid.engine.link.messages import (
    Acknowledged,
    DescribeDevice,
    DescribeProgram,
    DeviceDescription,
    ExecutableReady,
    LoadModel,
    PrepareExecutable,
    ProgramDescription,
    ReleaseExecutable,
    RunDone,
    RunExecutable,
    UnloadModel,
)
from braid.engine.link.shared_memory import Field, SlotLayout
from braid.engine.ops.dtypes import copy_into
from braid.engine.ops.whole import KIND, output_specs
from braid.engine.passes.specialise import interpreted
from braid.engine.runtime.arrays import ARRAY_TYPES, Array, Arrays, are_finite, static_shape
from braid.engine.runtime.memory import give_back_freed_memory
from braid.engine.runtime.yielding import (
    NetClock,
    YieldToRequests,
    elsewhere,
    in_thread,
    no_pause,
)
from braid.engine.worker.any_shape import AnyShape
from braid.engine.worker.heap_runs import Heap, heap_bytes, run_on_heap
from braid.engine.worker.measuring.measurements import Measurements
from braid.engine.worker.models import (
    ModelTable,
    ReadyExecutable,
    seeded_inputs,
)

log = logging.getLogger("braid.worker")

Views: TypeAlias = tuple[Arrays, Arrays]  # inputs and outputs by name
Copies: TypeAlias = Sequence[ReadyExecutable] | Sequence[AnyShape]  # one for each of several places

MAX_KEPT = 4096


class SlotViews:
    """Arrays over slots, kept since slots are used again."""

    def __init__(self, arena: mmap.mmap) -> None:
        self._arena = arena
        self._kept: dict[tuple[int, int, ProgramKey | None], Views] = {}
        """By executable, offset, and what an executable for any shape runs."""

    def of(
        self, number: int, offset: int, layout: SlotLayout, program: ProgramKey | None = None
    ) -> Views:
        """Inputs and outputs of executable ``number`` in the slot at ``offset``."""
        key = (number, offset, program)
        if key not in self._kept:
            if len(self._kept) > MAX_KEPT:
                self._kept.clear()
            self._kept[key] = (
                {name: self._view(field, offset) for name, field in layout.inputs.items()},
                {name: self._view(field, offset) for name, field in layout.outputs.items()},
            )
        return self._kept[key]

    def heap(self, offset: int, layout: SlotLayout) -> Heap:
        return Heap(self._arena, offset + layout.size_bytes)

    def forget(self, number: int) -> None:
        for key in [key for key in self._kept if key[0] == number]:
            del self._kept[key]

    def clear(self) -> None:
        self._kept.clear()

    def _view(self, field: Field, offset: int) -> Array:
        if field.spec.is_static:
            dtype, shape = ARRAY_TYPES[field.spec.dtype], static_shape(field.spec)
        else:  # its place
            dtype, shape = ARRAY_TYPES["UINT8"], [field.size_bytes]
        return np.ndarray(shape, dtype, self._arena, offset + field.offset)


class WorkClock:
    """Seconds of work since it was made, without those of requests in between."""

    def __init__(self, pause: YieldToRequests) -> None:
        self._pause = pause
        self._began_s = monotonic() - pause.yielded_s

    def work_s(self) -> float:
        return monotonic() - self._pause.yielded_s - self._began_s


@dataclass(frozen=True, slots=True)
class RunUnderway:
    """A run that the device has begun."""

    number: int  # of the executable
    began_ns: int
    pending: PendingRun


class RequestHandlers:
    """One method for each kind of request, two for a run; used by the device thread only."""

    def __init__(
        self,
        backend: Backend,
        arena: mmap.mmap,
        models: ModelTable,
        measurements: Measurements,
        pause: YieldToRequests,
    ) -> None:
        self._backend = backend
        self._models = models
        self._measurements = measurements
        self._slots = SlotViews(arena)
        self._pause = pause
        self._free_ns = 0  # when the device had done the latest run

    def begin(self, request: RunExecutable) -> RunUnderway:
        began_ns = perf_counter_ns()
        number = request.number
        if request.program is not None:
            return self._run_at_any_shape(request, request.program, began_ns)
        (ready,) = self._models.executables(number)
        inputs, outputs = self._slots.of(number, request.offset, ready.layout)
        if ready.layout.has_heap:
            heap = self._slots.heap(request.offset, ready.layout)
            run_on_heap(ready.program, inputs, outputs, heap)
            pending: PendingRun = FinishedRun(outputs)
        else:
            pending = begin_run(self._backend, ready, inputs, outputs, request.is_finite)
        return RunUnderway(number, began_ns, pending)

    def _run_at_any_shape(
        self, request: RunExecutable, program: ProgramKey, began_ns: int
    ) -> RunUnderway:
        number = request.number
        session, *_ = self._models.any_shape(number)
        slot = inputs, outputs, _ = self._any_slot(request, session, program)
        if request.is_finite or are_finite(inputs):
            session.run(program, *slot)
        else:
            session.run(program, *slot, partial(interpreted, *self._models.static(program)))
        return RunUnderway(number, began_ns, FinishedRun(outputs))

    def _any_slot(
        self, request: RunExecutable, session: AnyShape, program: ProgramKey
    ) -> tuple[Arrays, Arrays, Heap | None]:
        layout = session.layout(program)
        inputs, outputs = self._slots.of(request.number, request.offset, layout, program)
        heap = self._slots.heap(request.offset, layout) if layout.has_heap else None
        return inputs, outputs, heap

    def finish(self, run: RunUnderway) -> RunDone:
        """The time that counts is that since the device had done the run before."""
        run.pending.finish()
        began_ns, self._free_ns = max(run.began_ns, self._free_ns), perf_counter_ns()
        return RunDone((self._free_ns - began_ns) // 1000)

    def places(self, request: RunExecutable) -> Copies:
        """Executables of a run that goes on one place of the device; none if it needs all of it."""
        program = request.program
        if program is None:
            copies = self._models.executables(request.number)
            return copies if copies[0].place is not None else ()
        sessions = self._models.any_shape(request.number)
        if sessions[0].place is None:
            return ()
        if request.is_finite:
            return sessions
        inputs, *_ = self._any_slot(request, sessions[0], program)
        is_finite = are_finite(inputs)
        return sessions if is_finite else ()  # else it is interpreted, by the loop's thread

    def run_on_place(self, copies: Copies, request: RunExecutable) -> Callable[[Any], RunDone]:
        """Return the run of one of ``copies`` on its place, for the place's thread."""
        if request.program is not None:
            program, (session, *_) = request.program, copies
            assert isinstance(session, AnyShape)
            slot = self._any_slot(request, session, program)

            def run_session(ready: AnyShape) -> RunDone:
                began_ns = perf_counter_ns()
                ready.run(program, *slot)
                return RunDone((perf_counter_ns() - began_ns) // 1000)

            return run_session
        assert isinstance(copies[0], ReadyExecutable)
        inputs, outputs = self._slots.of(request.number, request.offset, copies[0].layout)

        def run(ready: ReadyExecutable) -> RunDone:
            began_ns = perf_counter_ns()
            begin_run(self._backend, ready, inputs, outputs, request.is_finite).finish()
            return RunDone((perf_counter_ns() - began_ns) // 1000)

        return run

    def load(self, request: LoadModel) -> Acknowledged:
        self._models.load(request.digest, Path(request.path))
        return Acknowledged()

    def unload(self, request: UnloadModel) -> Acknowledged:
        self._measurements.forget()
        self._slots.clear()
        self._models.unload(request.digest)
        give_back_freed_memory()
        return Acknowledged()

    def prepare(self, request: PrepareExecutable) -> ExecutableReady:
        """Make an executable, and run it once to warm up, unless a request is to."""
        to_run, key = request.to_run, request.to_run.program
        if to_run.any_shape:
            return self._open_any_shape(request)
        clock = WorkClock(self._pause)
        graph = self._models.program(key).graph
        places = self._models.places(to_run.side_by_side)
        copies = [self._models.executable_of(to_run, place) for place in places]
        self._models.prepare(request.number, copies)
        run_s = 0.0
        if request.runs_first:
            inputs = seeded_inputs(graph, self._models.content(key), 0)
            run_s = max(self._warm_up(ready, inputs) for ready in copies)
        needs_finite = any(ready.needs_finite for ready in copies)
        room = heap_bytes(graph, copies[0].layout)
        memory = self._models.memory(key.digest, copies[0])
        size_bytes = self._models.size_bytes(copies[0])
        outputs = output_specs(graph)
        return ExecutableReady(
            *(outputs, run_s, needs_finite, room, memory, size_bytes), clock.work_s()
        )

    def _open_any_shape(self, request: PrepareExecutable) -> ExecutableReady:
        """Open a model in another runtime for any of its shapes, and run it at one of them."""
        key = request.to_run.program
        copies = self._models.open_any_shape(request.to_run)
        session = copies[0]
        graph, _ = self._models.static(key)
        inputs = seeded_inputs(graph, self._models.content(key), 0)
        pause, began_ns = NetClock(self._pause), perf_counter_ns()
        room = in_thread(lambda: session.trial(key, inputs), pause)
        run_s = pause.net_time(began_ns, perf_counter_ns()).us / 1e6
        self._models.keep_any_shape(request.number, copies)
        memory = self._models.memory(key.digest)
        outputs = {name: place.spec for name, place in session.layout(key).outputs.items()}
        return ExecutableReady(outputs, run_s, True, room, memory)

    def _warm_up(self, ready: ReadyExecutable, inputs: Arrays) -> float:
        """Run for the first time; returns its seconds."""
        if (place := ready.place) is None:
            return self._warm_up_all(ready, inputs)

        def run() -> float:
            began_ns = perf_counter_ns()
            if ready.session is not None:
                with suppress(PreconditionFailed):  # said in the log when a request runs
                    ready.session.run(inputs)
            ready.prepared.run(inputs)
            return (perf_counter_ns() - began_ns) / 1e9

        return elsewhere([(place.start, run)], self._pause)[0]

    def _warm_up_all(self, ready: ReadyExecutable, inputs: Arrays) -> float:
        """As ``_warm_up``, on all of the device, without the seconds of requests in between."""
        pause, start_ns = NetClock(self._pause), perf_counter_ns()
        session = ready.session
        if session is not None:
            try:
                in_thread(lambda: session.run(inputs), pause)
            except PreconditionFailed:
                log.exception("model %s runs under its plan instead", ready.digest[:12])
        if any(unit.kind == KIND for unit in ready.program.graph.operators):
            with suppress(InvalidRequest):  # not every model takes what is made up
                self._backend.interpret(ready.program, inputs, pause)
        else:
            try:
                ready.prepared.run(inputs, pause)
            except PreconditionFailed:  # an engine refuses what is made up
                if ready.fallback is None:
                    raise
                ready.fallback.run(inputs, pause)
        return pause.net_time(start_ns, perf_counter_ns()).us / 1e6

    def release(self, request: ReleaseExecutable) -> Acknowledged:
        self._models.release(request.number)
        self._slots.forget(request.number)
        return Acknowledged()

    def describe_program(self, request: DescribeProgram) -> ProgramDescription:
        return ProgramDescription(self._models.program(request.program).graph)

    def describe_device(self, _: DescribeDevice) -> DeviceDescription:
        return structs.replace(self._description, state=self._backend.state(self._pause))

    @cached_property
    def _description(self) -> DeviceDescription:
        return DeviceDescription(
            self._backend.device_key(),
            self._backend.threads,
            tuple(self._backend.precisions),
            tuple(self._backend.runtimes),
            self._backend.software(),
        )


def begin_run(
    backend: Backend,
    ready: ReadyExecutable,
    inputs: Arrays,
    outputs: Arrays,
    is_finite: bool = False,
) -> PendingRun:
    """Begin a run that fills ``outputs``; ``is_finite``: known of inputs."""
    if not (is_finite or not ready.needs_finite or are_finite(inputs)):
        results = backend.interpret(ready.program, inputs, no_pause)
        return FinishedRun(copy_into(outputs, results))
    if ready.session is not None:
        try:
            if not all(array.size for array in outputs.values()):  # nothing has no address
                return FinishedRun(copy_into(outputs, ready.session.run(inputs)))
            ready.session.run_into(inputs, outputs)
            return FinishedRun(outputs)
        except PreconditionFailed as error:
            if not ready.has_fallen_back:  # inputs may decide it: not a line for each request
                ready.has_fallen_back = True
                facts = {"digest": ready.digest}
                log.warning("runs under its plan, for once: %s", error, extra=facts)
    try:
        return ready.prepared.begin(inputs, outputs)
    except PreconditionFailed as error:  # an engine refused a part
        if ready.fallback is None:
            raise
        if not ready.has_fallen_back:
            ready.has_fallen_back = True
            facts = {"digest": ready.digest}
            log.warning("runs under the sequential plan, for once: %s", error, extra=facts)
        return ready.fallback.begin(inputs, outputs)
