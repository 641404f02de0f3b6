"""One device worker process: its sockets, and the calls it has not answered yet.

    start ──> answers calls ──> ends (by itself, or by ``end``): every open call fails
                  └──status asked for twice a second (watch.py)──> hung: killed

Loads no torch.
"""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Self, TypeVar, cast

from braid.core.background import to_the_end
from braid.core.descriptors import connect
from braid.core.errors import RunStopped, RunTooLong, WorkerDied, WorkerRestarting
from braid.core.json_form import to_json
from braid.engine.link.frames import FrameDecoder, encode
from braid.engine.link.messages import (
    AnyRequest,
    ControlOrder,
    DeviceIsLost,
    DropMeasurement,
    MeasurementRequest,
    RunExecutable,
    WorkerAnswer,
    WorkerCall,
    WorkerFailure,
    WorkerProgress,
    WorkerRequest,
    WorkerStatus,
)
from braid.engine.link.options import WatchLimits, WorkerEnd, WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.watch import TICK_S, OpenCall, RunBound, Watch
from braid.engine.processes.child import ChildProcess, Streams
from braid.engine.processes.child_time import DidNothing, TookTooLong, wait_for_child
from braid.engine.processes.environment import cuda_environment, library_environment

OnProgress = Callable[[float], None]
"""Told how far a long call is, now and then: the fraction done."""

END_SECONDS = 2.0  # between SIGTERM and SIGKILL
CAUSE_SECONDS = 0.2  # seconds to wait for the cause of an end after the link has closed

CRASHES = frozenset(
    {signal.SIGFPE, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGSYS}
)
"""Signals by which a process ends through its own doing."""

R = TypeVar("R")


class WorkerProcess(asyncio.Protocol):
    """A running worker. Belongs to one event loop."""

    def __init__(self, child: ChildProcess, limits: WatchLimits) -> None:
        self._child = child
        self._next_call = 0
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._last_words = ""  # why it ends, if it sent that before
        self._watch = Watch(limits)
        self._control: asyncio.Transport | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None  # set when the worker has closed its link
        self._failing: asyncio.TimerHandle | None = None  # the same
        self.on_silence: Callable[[], None] = lambda: None  # told when ``is_silent`` changes

    @classmethod
    async def start(cls, options: WorkerOptions, arena: Arena) -> Self:
        """Fork a worker; calls may be sent at once and are answered when it is up."""
        ours, theirs = socket.socketpair()
        watching, watched = socket.socketpair()
        with theirs, watched:
            given = {
                "link-fd": theirs.fileno(),
                "control-fd": watched.fileno(),
                "arena-fd": arena.fileno(),
            }
            child = await ChildProcess.start(
                options.module,
                f"--options={json.dumps(to_json(options))}",
                environment=_environment(options),
                streams=Streams.LOGGED,
                given=given,
            )
        started = cls(child, options.watch)
        control = _Control(started._heard)
        try:
            started._control, _ = await connect(lambda: control, watching)
            started._transport, _ = await connect(lambda: started, ours)
        except BaseException:
            await to_the_end(started.end())
            raise
        started._tick()
        return started

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child.is_alive

    @property
    def is_silent(self) -> bool:
        """Whether the last questions for its status have no answer; see ``Watch``."""
        return self._watch.is_silent

    async def wait(self) -> WorkerEnd:
        end = await self._child.wait()
        self._ended(is_crash=-end.status in CRASHES)
        return WorkerEnd.of(end, self._last_words, self._watch.problem)

    async def end(self) -> None:
        """Terminate the process, kill it after a moment; open calls fail."""
        if self._transport is not None:
            self._transport.close()
        await self._child.end(END_SECONDS)
        self._ended()

    def _ended(self, *, is_crash: bool = False) -> None:
        """Release what belongs to a process that has ended; open calls fail."""
        for timer in (self._ticking, self._leaving, self._failing):
            if timer is not None:
                timer.cancel()
        if self._control is not None:
            self._control.close()
        self._fail_calls(is_crash=is_crash)

    def send(
        self,
        request: WorkerRequest[R],
        on_progress: OnProgress | None = None,
        bound: RunBound | None = None,
    ) -> asyncio.Future[R]:
        """The future brings the reply; ``bound`` is given for inferences only.

        Cancelling the future drops a measurement in the worker; an inference runs to its end unless
        ``stop`` ends it.
        """
        assert self._transport is not None
        self._next_call += 1
        number = self._next_call
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._watch.calls[number] = OpenCall(request, future, monotonic(), on_progress, bound)
        if not self._transport.is_closing():
            self._transport.write(encode(WorkerCall(number, cast(AnyRequest, request))))
        if bound is None and isinstance(request, MeasurementRequest):
            future.add_done_callback(lambda done: self._drop(number, done))
        return future

    async def answer_while_starting(self, request: WorkerRequest[R], seconds: float) -> R:
        """Send a request to a worker that starts, which takes long where no core is free.

        Raises ``WorkerRestarting`` if it ends, uses no CPU time for ``seconds``, or takes long.
        """
        answer = self.send(request)
        try:
            await wait_for_child(answer, self.pid, seconds, cpu_seconds=inf)
        except (DidNothing, TookTooLong) as error:
            await self.end()
            with suppress(WorkerRestarting):
                await answer
            why = "not run" if isinstance(error, DidNothing) else "not answered"
            raise WorkerRestarting(f"it has {why} for {seconds:g} s") from error
        return await answer

    def stop(self, future: asyncio.Future[Any]) -> None:
        """End a run; its future still brings an answer, or the worker is replaced."""
        self._tell(self._watch.unwanted(future))

    def _drop(self, number: int, done: asyncio.Future[Any]) -> None:
        """Tell the worker to drop a measurement whose future was cancelled."""
        waiting = self._watch.calls.pop(number, None)
        if done.cancelled() and waiting is not None and self.is_alive:
            self.send(DropMeasurement(number)).add_done_callback(
                lambda future: future.cancelled() or future.exception()
            )

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            match message:
                case WorkerAnswer() | WorkerFailure():
                    self._answered(message)
                case WorkerProgress(number, fraction):
                    call = self._watch.calls.get(number)
                    if call is not None and call.on_progress is not None:
                        call.on_progress(fraction)
                case DeviceIsLost(reason):
                    self._last_words = reason

    def _answered(self, message: WorkerAnswer | WorkerFailure) -> None:
        call = self._watch.calls.pop(message.call, None)
        if call is None or call.future.done():
            return
        if isinstance(message, WorkerAnswer):
            call.future.set_result(message.reply)
            return
        error = message.error
        if isinstance(error, RunStopped) and (call.bound is None or call.is_too_long):
            error = RunTooLong(str(error))
        call.future.set_exception(error)

    def _heard(self, status: WorkerStatus) -> None:
        was_silent = self.is_silent
        self._watch.heard(status)
        if was_silent:
            self.on_silence()

    def _tick(self) -> None:
        """Ask the process for its status; kill it if it is hung."""
        if not self._child.is_alive:
            return
        was_silent = self.is_silent
        self._tell(self._watch.tick())
        if self._watch.problem:
            self._fail_hung_call()
            self._child.kill()
            return
        if self.is_silent and not was_silent:
            self.on_silence()
        self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _fail_hung_call(self) -> None:
        """Fail the call that the worker hangs in, if known; other calls may be sent again."""
        call = self._watch.hung_call
        if call is not None and not call.future.done():
            call.future.set_exception(
                RunTooLong(f"its device had to be stopped: {self._watch.problem}")
            )

    def _tell(self, orders: Sequence[ControlOrder]) -> None:
        if self._control is not None and not self._control.is_closing():
            for order in orders:
                self._control.write(encode(order))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail open calls once it is known how the worker ended, or after ``END_SECONDS``."""
        if not self._child.is_alive:
            self._fail_calls()
            return
        loop = asyncio.get_running_loop()
        self._failing = loop.call_later(CAUSE_SECONDS, self._fail_calls)
        self._leaving = loop.call_later(END_SECONDS, self._child.kill)

    def _fail_calls(self, *, is_crash: bool = False) -> None:
        """Fail open calls. Runs are made in the order of their calls: a crash is of the first."""
        calls, self._watch.calls = self._watch.calls, {}
        for call in calls.values():
            is_of_run = is_crash and isinstance(call.request, RunExecutable)
            is_crash = is_crash and not is_of_run
            if not call.future.done():
                said = "the device worker died while it had this request; try again"
                call.future.set_exception(WorkerDied(said, is_of_run=is_of_run))


class _Control(asyncio.Protocol):
    """The front end's side of the socket to a worker's control thread."""

    def __init__(self, heard: Callable[[WorkerStatus], None]) -> None:
        self._heard = heard
        self._decoder = FrameDecoder()

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if isinstance(message, WorkerStatus):
                self._heard(message)


def _environment(options: WorkerOptions) -> dict[str, str]:
    environment = library_environment()
    return environment if options.gpu is None else cuda_environment(options.gpu, environment)
