"""The front end's link to a device: keeps one worker process in service.

    STARTING ──facts arrive, on_start done──> UP ──process ends──> DOWN ──a pause──> STARTING
        ▲                                     └── sleep ──> ASLEEP ──wake──> STARTING
        └──────────────────── close, from any of them ──> CLOSED

Loads no torch. Every call ends exactly once: with its answer, with the error the worker sent, or
with WorkerRestarting when the process died first.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from braid.core.background import to_the_end
from braid.core.errors import BraidError, StartupError, WorkerFault, WorkerRestarting
from braid.engine.link.messages import (
    DescribeDevice,
    DeviceDescription,
    RunDone,
    RunExecutable,
    WorkerRequest,
)
from braid.engine.link.options import WorkerEnd, WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.watch import RunBound
from braid.engine.link.worker_process import OnProgress, WorkerProcess

log = logging.getLogger("braid.worker.link")

R = TypeVar("R")

STABLE_SECONDS = 10.0  # a worker that lived so long is replaced at once


class LinkState(enum.Enum):
    """State of the worker in service."""

    STARTING = "starting"  # is told what it needs to know; only on_start may call
    UP = "up"  # answers calls
    DOWN = "down"  # died; another one starts after a pause
    ASLEEP = "asleep"  # ended on purpose, as nothing needs it; ``wake`` starts another one
    CLOSED = "closed"  # shut down on purpose, for good


async def _tell_nothing(link: WorkerLink) -> None:
    """Bring up a worker that need not know anything."""


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Calls that tell what happens to the worker of a link."""

    on_start: Callable[[WorkerLink], Awaitable[None]] = _tell_nothing  # while a worker starts
    on_state: Callable[[LinkState], None] = lambda _: None  # when it, or ``answers``, may differ
    on_end: Callable[[WorkerEnd], None] = lambda _: None  # of a worker in service


class WorkerLink:
    """The worker in service. Belongs to one event loop."""

    def __init__(
        self, name: str, options: WorkerOptions, arena: Arena, events: LinkEvents | None = None
    ) -> None:
        self.name = name
        self._events = events or LinkEvents()
        self.options = options
        self.state = LinkState.DOWN
        self.device: DeviceDescription | None = None  # known once the worker was up
        self._arena = arena
        self._worker: WorkerProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._falling_asleep = asyncio.Lock()

    async def start(self) -> None:
        """Start a worker; returns when it is up. Raises ``StartupError`` or ``WorkerFault``."""
        await self._bring_up()
        self._supervisor = asyncio.create_task(self._supervise(), name="worker-supervisor")

    async def close(self) -> None:
        """End the worker; calls in flight fail with WorkerRestarting."""
        await self._end(LinkState.CLOSED)

    async def sleep(self) -> None:
        """End the worker if it is up, until ``wake``; the device is as good as before."""
        async with self._falling_asleep:
            if self.state is LinkState.UP:
                await self._end(LinkState.ASLEEP)
                log.info("the worker of %s sleeps until a model needs it", self.name)

    async def wake(self) -> None:
        """Start a sleeping worker, until it is up; ``StartupError`` or ``WorkerRestarting``."""
        async with self._falling_asleep:
            if self.state is not LinkState.ASLEEP:
                return
            try:
                await self.start()
            except (OSError, WorkerFault) as error:
                raise WorkerRestarting(f"{self.name} does not wake up: {error}") from error
            finally:
                if self.state is LinkState.STARTING:  # type: ignore[comparison-overlap]  # by now
                    await to_the_end(self._end(LinkState.ASLEEP))

    async def _end(self, state: LinkState) -> None:
        self._set(state)
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._worker is not None:
            await self._worker.end()

    def call(
        self, request: WorkerRequest[R], on_progress: OnProgress | None = None
    ) -> asyncio.Future[R]:
        """Send a request; the future brings its reply, ``on_progress`` is told on the way.

        Cancelling the future drops a measurement. Raises ``WorkerRestarting`` if none is up.
        """
        return self._in_service().send(request, on_progress)

    def _in_service(self) -> WorkerProcess:
        if self.state is not LinkState.UP:
            raise WorkerRestarting("the device worker is restarting; try again in a moment")
        assert self._worker is not None
        return self._worker

    def run(self, request: RunExecutable, bound: RunBound) -> asyncio.Future[RunDone]:
        """Run for no longer than ``bound``; ``WorkerRestarting`` at once if no worker is up."""
        return self._in_service().send(request, None, bound)

    def stop(self, answer: asyncio.Future[Any]) -> None:
        """Stop an inference that no request waits for; replaces the worker if the run goes on."""
        if self._worker is not None:
            self._worker.stop(answer)

    @property
    def is_asleep(self) -> bool:
        """Whether the worker sleeps, or wakes up: it serves as well as one that is up."""
        is_waking = self.state is LinkState.STARTING and self._falling_asleep.locked()
        return self.state is LinkState.ASLEEP or is_waking

    @property
    def answers(self) -> bool:
        """Whether the worker is asleep, or is up and answered the last questions for its status."""
        if self.is_asleep:
            return True
        up = self.state is LinkState.UP
        return up and self._worker is not None and not self._worker.is_silent

    @property
    def pid(self) -> int | None:
        return self._worker.pid if self._worker is not None and self._worker.is_alive else None

    async def startup_call(self, request: WorkerRequest[R]) -> R:
        """As ``call``, for use by ``on_start`` only, before the worker is up."""
        assert self.state is LinkState.STARTING
        assert self._worker is not None
        return await self._worker.answer_while_starting(request, self.options.start_timeout_s)

    async def _bring_up(self) -> None:
        self._set(LinkState.STARTING)
        began = monotonic()
        worker = self._worker = await WorkerProcess.start(self.options, self._arena)
        worker.on_silence = lambda: self._events.on_state(self.state)
        try:
            self.device = await self.startup_call(DescribeDevice())
            await self._events.on_start(self)
        except StartupError:
            await worker.end()
            raise
        except BraidError as error:
            await worker.end()
            raise WorkerFault(f"the worker of {self.name} did not start: {error}") from error
        self._set(LinkState.UP)
        log.info("worker %d of %s up after %.2f s", worker.pid, self.name, monotonic() - began)

    async def _supervise(self) -> None:
        """Replace the worker whenever it ends; those that end soon start further apart."""
        pacing, began = RestartPacing(self.options.max_backoff_s), monotonic()
        while True:
            assert self._worker is not None
            end = await self._worker.wait()
            log.error("worker %d of %s is replaced: %s", self._worker.pid, self.name, end.text)
            self._events.on_end(end)
            self._set(LinkState.DOWN)
            await asyncio.sleep(pacing.pause_s(monotonic() - began))
            began = monotonic()
            try:
                await self._bring_up()
            except (BraidError, OSError) as error:
                log.error("%s", error)

    def _set(self, state: LinkState) -> None:
        if state is not self.state:
            self.state = state
            self._events.on_state(state)


class RestartPacing:
    """Spaces out starts of workers that end soon: further with each, up to ``longest_s``."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._apart_s = 0.0  # from one start to the next

    def pause_s(self, lived_s: float) -> float:
        """Seconds to wait after a worker that ended ``lived_s`` seconds after its start began."""
        if lived_s > STABLE_SECONDS:
            self._apart_s = 0.0
        pause_s = max(0.0, self._apart_s - lived_s)
        self._apart_s = min(self._longest_s, 2 * self._apart_s + 0.1)
        return pause_s
