"""Where a device is measured, so that requests hardly notice.

CPU   MeasuringProcess: a worker of its own that gives way to the one that serves; the kernel takes
      its cores away within a moment, in the middle of whatever it runs.
GPU   ServingProcess: the device's worker, between requests; on a GPU two processes would take
      turns of milliseconds, and each needs a context.

Which process measured does not matter to what was measured: same device, same code, same threads.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from braid.core.background import BackgroundTasks
from braid.core.errors import WorkerRestarting
from braid.engine.link.messages import (
    DescribeDevice,
    DeviceDescription,
    LoadModel,
    ProgramRequest,
    UnloadModel,
    WorkerRequest,
)
from braid.engine.link.options import WatchLimits, WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import WorkerLink
from braid.engine.link.worker_process import OnProgress, WorkerProcess

log = logging.getLogger("braid.bench")

MODULE = "braid.compiler.process"

IDLE_SECONDS = 10.0
"""Without a call, after which a measuring process ends: it holds up to 300 MiB, and another one
takes 0.1 to 0.3 s to start."""

PATIENCE = 10
"""Factor by which the limits of a worker grow that gives way to the one that serves."""

R = TypeVar("R")


class MeasuringHost(Protocol):
    """A worker process that measures."""

    @property
    def is_measuring(self) -> bool:
        """True if a call is open that competes with the serving worker for cores."""

    @property
    def pid(self) -> int | None:
        """Process id, or None if no process of its own runs."""
        return None

    async def call(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        """Reply to a request about a loaded model.

        Raises WorkerRestarting: no worker is up, it died or does not start.
        """

    def wake(self) -> None:
        """Prepare for calls that will come soon."""

    def unload(self, digest: str) -> None:
        """Forget a model that no call is about any more."""

    async def close(self) -> None:
        """End what was started here."""


ArtefactOf = Callable[[str], Path]
"""Folder of a model that the device has loaded, by its digest."""

MakeMeasuringHost = Callable[[WorkerLink, Arena, ArtefactOf], MeasuringHost]
"""Makes the host of one device, whose serving worker is that of the link."""


class ServingProcess(MeasuringHost):
    """Worker that serves, which measures between requests; its device loads and ends it."""

    is_measuring = False

    def __init__(self, link: WorkerLink) -> None:
        self._link = link

    async def call(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        return await self._link.call(request, on_progress)

    def wake(self) -> None: ...
    def unload(self, digest: str) -> None: ...
    async def close(self) -> None: ...


class MeasuringProcess(MeasuringHost):
    """A worker process that exists while a device is measured. Belongs to the event loop.

    none ──wake, call──> running ──idle for ``idle_seconds``, close──> none
                                   └──dies: open calls fail with WorkerRestarting──> none
    """

    def __init__(
        self,
        name: str,
        options: WorkerOptions,
        arena: Arena,
        artefact_of: ArtefactOf,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """No tensor crosses ``arena``. After ``idle_seconds`` without a call the process ends."""
        self._name = name
        self._options = options
        self._arena = arena
        self._artefact_of = artefact_of
        self._idle_seconds = idle_seconds
        self._changing = asyncio.Lock()  # held to start, load and end
        self._process: WorkerProcess | None = None
        self._is_up = False  # has answered
        self._loaded: set[str] = set()
        self._open_calls = 0
        self._is_closed = False
        self._ending: asyncio.TimerHandle | None = None
        self._background = BackgroundTasks(f"bench of {name}")

    @property
    def is_measuring(self) -> bool:
        return self._open_calls > 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def describe(self) -> DeviceDescription:
        self._open_calls += 1
        try:
            async with self._changing:
                process = await self._started()
            return await process.send(DescribeDevice())
        finally:
            self._open_calls -= 1
            self._end_when_idle()

    async def call(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        """Send a call; the worker is started and the model loaded first, where needed."""
        self._open_calls += 1
        try:
            process = await self.load(request.program.digest)
            return await process.send(request, on_progress)
        finally:
            self._open_calls -= 1
            self._end_when_idle()

    def wake(self) -> None:
        self._background.start(self._start())
        self._end_when_idle()

    async def _start(self) -> None:
        async with self._changing:
            await self._started()

    def unload(self, digest: str) -> None:
        """Tell the worker to forget a model, if it is loaded there, and do not wait for that."""
        process = self._process
        if process is not None and digest in self._loaded:
            self._loaded.discard(digest)
            self._send(process, UnloadModel(digest))  # before whatever is sent next

    def _send(self, process: WorkerProcess, request: WorkerRequest[Any]) -> None:
        answer = process.send(request)

        async def hear() -> None:
            with suppress(WorkerRestarting):  # a worker that has ended has forgotten it
                await answer

        self._background.start(hear())

    async def close(self) -> None:
        self._is_closed = True
        if self._ending is not None:
            self._ending.cancel()
        await self._end_now()  # a task that starts it, or loads a model, then releases the lock
        await self._end()
        await self._background.ended()

    async def load(self, digest: str) -> WorkerProcess:
        async with self._changing:
            process = await self._started()
            if digest not in self._loaded:
                artefact = self._artefact_of(digest)
                await process.send(LoadModel(digest, str(artefact)))
                self._loaded.add(digest)
            return process

    async def _started(self) -> WorkerProcess:
        self._check_open()
        process = self._process
        if process is None:
            try:
                process = await WorkerProcess.start(self._options, self._arena)
            except OSError as error:
                raise WorkerRestarting(f"no process to measure in: {error}") from error
            self._process, self._loaded, self._is_up = process, set(), False
            log.info("bench of %s: worker %d", self._name, process.pid)
            self._background.start(self._watch(process))
            if self._is_closed:  # by now; ``close`` waits for the lock
                await self._end_now()
            self._check_open()
        if not self._is_up:
            await self._answers(process)
            self._is_up = True
        return process

    def _check_open(self) -> None:
        if self._is_closed:
            raise WorkerRestarting("the server is shutting down")

    async def _answers(self, process: WorkerProcess) -> None:
        """Wait for the first answer of a worker, which takes long where no core is free.

        Raises WorkerRestarting: the worker used no CPU time, or took too long; it is ended.
        """
        try:
            await process.answer_while_starting(DescribeDevice(), self._options.start_timeout_s)
        except WorkerRestarting as error:
            if self._process is process:
                self._process = None
            raise WorkerRestarting(
                f"the worker that measures for {self._name} did not start: {error}"
            ) from error

    async def _watch(self, process: WorkerProcess) -> None:
        """Wait for the end of a process, and log it unless the process was told to end."""
        end = await process.wait()
        if self._process is process:
            self._process = None
            log.error("bench of %s: worker %d ended: %s", self._name, process.pid, end.text)

    def _end_when_idle(self) -> None:
        if self._is_closed:
            return
        if self._ending is not None:
            self._ending.cancel()
        loop = asyncio.get_running_loop()
        self._ending = loop.call_later(
            self._idle_seconds, lambda: self._background.start(self._end())
        )

    async def _end(self) -> None:
        async with self._changing:
            if not self._is_closed and self._open_calls:
                return
            await self._end_now()

    async def _end_now(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()


def measuring_host(link: WorkerLink, arena: Arena, artefact_of: ArtefactOf) -> MeasuringHost:
    """Return a process of its own for a CPU, the serving worker for a GPU."""
    if link.options.gpu is not None:
        return ServingProcess(link)
    limits = link.options.watch
    patient = WatchLimits(
        silence_s=PATIENCE * limits.silence_s,
        late_silence_s=PATIENCE * limits.late_silence_s,
        step_s=PATIENCE * limits.step_s,
    )
    options = replace(
        link.options,
        module=MODULE,
        gives_way=True,
        watch=patient,
        memory_bytes=link.options.bench_memory_bytes,
    )
    return MeasuringProcess(link.name, options, arena, artefact_of)
