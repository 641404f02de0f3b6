"""The device worker's loop: one thread that owns the device and serves one link.

    loop:  messages waiting? ──yes──> inference first, then everything else in order
                └──no──> one step of the oldest measurement, or sleep until a message comes

A measurement is a generator that yields after each repetition, and long work pauses in between
(``braid.engine.runtime.yielding``), so a request waits for one stage at most, mostly for a
millisecond. The loop ends when the link closes: the front end is gone or wants it gone.
"""

import gc
import logging
import mmap
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from braid.core.errors import BraidError, DeviceLost, InvalidRequest, WorkerFault
from braid.engine.device import RUNS_UNDERWAY, Backend
from braid.engine.importer.host.report import WEIGHTS_FILE
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import (
    Acknowledged,
    AnyReply,
    Calibrate,
    ComparePlans,
    CompareThroughput,
    DescribeDevice,
    DescribeProgram,
    DropMeasurement,
    FindFacts,
    FindKernels,
    LoadModel,
    MeasurementRequest,
    MeasureParts,
    MeasureStage,
    PrepareExecutable,
    ReleaseExecutable,
    RunExecutable,
    UnloadModel,
    WorkerAnswer,
    WorkerCall,
    WorkerFailure,
    WorkerProgress,
)
from braid.engine.processes.mapped_files import give_back_pages
from braid.engine.runtime.memory import FreedMemory, leaves_interpreter_unsound
from braid.engine.runtime.stopping import check_stopped
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.worker.measuring.measurements import Measurements, Task
from braid.engine.worker.models import ModelTable
from braid.engine.worker.process.current_work import CurrentWork
from braid.engine.worker.requests import Copies, RequestHandlers, RunUnderway
from braid.engine.worker.side_by_side import OnPlace, SideRuns

log = logging.getLogger("braid.worker")

LINGER_MS = 5  # to wait for the next request of a queue before measuring goes on

LINGER_SHARE = 9
"""Greatest ratio of the time that other work waits for requests to the time it went on before."""


@dataclass(slots=True)
class _Background:
    """Work for idle moments, and the call that it answers, if any."""

    call: int | None
    task: Task
    told: float = 0.0  # the progress that was reported


class Worker(YieldToRequests):
    """Loop on the device's thread; to other work, the pause in which requests go first."""

    def __init__(
        self,
        channel: BlockingChannel,
        arena: mmap.mmap,
        backend: Backend,
        work: CurrentWork | None = None,
        freed: FreedMemory | None = None,
    ) -> None:
        self._channel = channel
        self._work = work or CurrentWork()
        self._backend = backend
        self._poller = select.poll()
        self._poller.register(channel.fileno(), select.POLLIN)
        self._waiting: deque[WorkerCall] = deque()  # received, and not inference
        self._is_closed = False
        self._went_on_at = monotonic()  # when work that is not inference began again
        models = ModelTable(backend, self)
        self._measurements = Measurements(backend, models, self)
        calls = RequestHandlers(backend, arena, models, self._measurements, self)
        self._calls = calls
        self._side_runs = SideRuns()
        self.handlers: dict[type, Callable[[Any], AnyReply]] = {
            DescribeDevice: calls.describe_device,
            LoadModel: calls.load,
            UnloadModel: calls.unload,
            PrepareExecutable: calls.prepare,
            ReleaseExecutable: calls.release,
            DescribeProgram: calls.describe_program,
            DropMeasurement: self._drop,
        }
        self.measurements: dict[type, Callable[[Any], Task]] = {
            FindFacts: self._measurements.facts,
            FindKernels: self._measurements.kernels,
            MeasureStage: self._measurements.measure,
            ComparePlans: self._measurements.compare,
            MeasureParts: self._measurements.parts,
            Calibrate: self._measurements.calibrate,
            CompareThroughput: self._measurements.throughput,
        }
        self._background = deque([_Background(None, _settle())])
        self._freed = freed or FreedMemory(give_back_read=partial(give_back_pages, WEIGHTS_FILE))

    def serve(self) -> None:
        """Until the link closes; ``DeviceLost`` if this process can use the device no more."""
        while not self._is_closed:
            if self._background or self._waiting:
                self.let_inference_go_first()
            else:
                self._work.rest()
                self._give_back_when_idle()
                self.receive(None)
            if self._waiting:
                self._work.begin_work()
                self._answer(self._waiting.popleft())
            elif self._background and not self._is_closed:
                self._advance()

    def _give_back_when_idle(self) -> None:
        """Wait for messages; if no work comes for a while, give back memory that it has freed."""
        due_s = self._freed.due_s
        if due_s is not None and not self._poller.poll(due_s * 1000):
            self._freed.give_back()

    @property
    def arrivals(self) -> int | None:
        """File descriptor that is readable when messages have arrived; None once it is closed."""
        return None if self._is_closed else self._channel.fileno()

    def receive(self, timeout_ms: int | None) -> bool:
        """Answer inference requests, keep other calls; also called in the midst of other work."""
        requests = self._arrived(timeout_ms)
        if requests:
            self._infer(requests, and_more=timeout_ms is None)
        return bool(requests)

    def _arrived(self, timeout_ms: int | None) -> list[WorkerCall]:
        # Polled even to wait for ever: a blocked ``recv`` also wakes when the peer has read.
        if self._is_closed or not self._poller.poll(timeout_ms):
            return []
        messages = self._channel.receive()
        if messages is None:
            self._is_closed = True
            return []
        runs = []
        for call in messages:
            if not isinstance(call, WorkerCall):
                continue
            if isinstance(call.request, RunExecutable):
                runs.append(call)
            else:
                self._waiting.append(call)
        return runs

    def _infer(self, requests: list[WorkerCall], *, and_more: bool) -> None:
        """Begins the next run while a device works by itself; ``and_more``: also later requests."""
        self._freed.worked()
        left, underway = deque(requests), deque[tuple[int, RunUnderway]]()
        while left or underway or self._side_runs.any:
            if underway and _is_due(underway, left):
                self._finish(*underway.popleft())
            elif left and self._begin(left[0], underway):
                left.popleft()
            elif left or self._side_runs.any:
                left += self._arrived_beside(and_more=and_more and not self._waiting)
            elif and_more and not self._waiting:
                left += self._arrived(0)
            else:
                self._finish(*underway.popleft())

    def _arrived_beside(self, *, and_more: bool) -> list[WorkerCall]:
        """Wait until a place is free, or requests have come if ``and_more``; returns those."""
        poller, freed = select.poll(), self._side_runs.freed.fileno()
        poller.register(freed, select.POLLIN)
        if and_more and not self._is_closed:
            poller.register(self._channel.fileno(), select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll()]
        if freed in ready:
            self._side_runs.seen()
            self._side_runs.begin_waiting()
        return self._arrived(0) if self._channel.fileno() in ready else []

    def _begin(self, call: WorkerCall, underway: deque[tuple[int, RunUnderway]]) -> bool:
        """Begin a run; False: something is in its way, and it waits for a place."""
        assert isinstance(call.request, RunExecutable)
        try:
            copies = self._calls.places(call.request)
            if copies:
                self._begin_beside(call.number, copies, call.request)
                return True
            if self._side_runs.any:
                return False
            with self._work.running(call.number):
                run = self._calls.begin(call.request)
        except Exception as error:
            self._work.ended(call.number)
            self._fail(call.number, error)
        else:
            underway.append((call.number, run))
        return True

    def _begin_beside(self, call: int, copies: Copies, request: RunExecutable) -> None:
        """Begin a run on a place, now or when one is free; the place's thread answers it."""
        run = self._calls.run_on_place(copies, request)

        def work(ready: OnPlace) -> None:
            try:
                with self._work.running_beside(call):
                    reply = run(ready)
            except Exception as error:
                self._fail(call, error)
            else:
                self._channel.send(WorkerAnswer(call, reply))

        self._side_runs.begin(copies, lambda ready: partial(work, ready))

    def _finish(self, call: int, run: RunUnderway) -> None:
        try:
            reply = self._calls.finish(run)
        except Exception as error:
            self._work.ended(call)
            self._fail(call, error)
        else:
            self._work.ended(call)
            self._channel.send(WorkerAnswer(call, reply))

    def let_inference_go_first(self) -> bool:
        """Answer requests that have arrived, until none has come for a moment.

        The front end sends a batch once the one before is answered. Under load without end,
        other work still gets a tenth of the time.
        """
        self._work.rest()  # the step before has ended, however long this takes
        began = monotonic()
        if not self.receive(0):
            return False
        until = began + LINGER_SHARE * (began - self._went_on_at)
        while self.receive(LINGER_MS) and monotonic() < until:
            pass
        self._went_on_at = monotonic()
        self.yielded_s += self._went_on_at - began
        return True

    def answer(self) -> bool:
        began = monotonic()
        any_came = self.receive(0)
        self.yielded_s += monotonic() - began
        return any_came

    def __call__(self) -> bool:
        any_ran = self.let_inference_go_first()
        self._work.begin_step()
        check_stopped()
        return any_ran

    def _answer(self, message: WorkerCall) -> None:
        call, request = message.number, message.request
        if not isinstance(request, DescribeDevice):  # which the front end asks all the time
            self._freed.loaded()
        try:
            if isinstance(request, MeasurementRequest):
                task = self.measurements[type(request)](request)
                self._background.append(_Background(call, task))
                return
            reply = self.handlers[type(request)](request)
        except Exception as error:
            self._fail(call, error)
        else:
            self._channel.send(WorkerAnswer(call, reply))

    def _advance(self) -> None:
        current = self._background[0]
        self._work.begin_step()
        try:
            self._tell(current, next(current.task))
        except StopIteration as stop:
            self._background.popleft()
            self._work.begin_work()
            if current.call is not None:
                self._channel.send(WorkerAnswer(current.call, stop.value))
        except Exception as error:
            self._background.popleft()
            self._work.begin_work()
            self._fail(current.call, error)

    def _tell(self, current: _Background, progress: float | None) -> None:
        """Report the progress of a task, fractions in steps of 2 %."""
        if current.call is None or progress is None:
            return
        if progress >= current.told + 0.02:
            current.told = progress
            self._channel.send(WorkerProgress(current.call, progress))

    def _fail(self, call: int | None, error: Exception) -> None:
        """Answer a call with an error; if the device is lost, raise DeviceLost instead."""
        fault = _as_braid_error(error, self._backend)
        if isinstance(fault, DeviceLost):
            raise fault
        if isinstance(fault, WorkerFault):
            log.error("call %s failed", call, exc_info=error)
        if call is None:
            return
        self._channel.send(WorkerFailure.of(call, fault))

    def _drop(self, request: DropMeasurement) -> Acknowledged:
        kept = [item for item in self._background if item.call != request.call]
        self._background = deque(kept)
        self._measurements.forget()
        return Acknowledged()


def _is_due(underway: Sequence[tuple[int, RunUnderway]], left: Sequence[WorkerCall]) -> bool:
    """Whether the oldest run is finished before anything else is begun."""
    _, run = underway[0]
    other = bool(left) and _executable(left[0]) != run.number
    return other or len(underway) == RUNS_UNDERWAY or run.pending.is_done()


def _executable(call: WorkerCall) -> int:
    assert isinstance(call.request, RunExecutable)
    return call.request.number


def _as_braid_error(error: Exception, backend: Backend) -> BraidError:
    if leaves_interpreter_unsound(error):
        return DeviceLost("the worker's interpreter found no memory, so it cannot be relied on")
    if isinstance(error, BraidError):
        return error
    if (fault := backend.fault(error)) is not None:
        return fault
    text = str(error)
    if isinstance(error, IndexError) or "out of range" in text or "out of bounds" in text:
        return InvalidRequest(
            "the model could not run on these values: an index in an input is out of range"
        )
    return WorkerFault(f"the device worker failed: {type(error).__name__}")


def _settle() -> Task:
    """Keep what stays out of garbage collections: a full one took 130 ms, and takes 12."""
    yield None
    gc.collect()
    gc.freeze()
    return Acknowledged()
