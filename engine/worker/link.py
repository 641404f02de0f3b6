"""The front end's end of a device worker: starts it, calls it, restarts it when it dies.

    STARTING ──device facts arrive, replay done──> UP ──process ends──> DOWN ──backoff──> STARTING
        └──────────────────── close ──────────────────────┴──> CLOSED

Loads no torch. Every call ends exactly once: with its answer, with the error the worker sent, or
with WorkerRestarting when the process died first. After a restart ``on_start`` tells the new
process what the old one knew before anyone else may call.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from core import errors
from core.errors import BraidError, WorkerFault, WorkerRestarting
from engine.worker.arena import Arena
from engine.worker.frames import FrameDecoder, encode

log = logging.getLogger("braid.worker.link")

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker process is started."""

    threads: int
    arena_bytes: int
    activation_bytes: int
    start_timeout_s: float = 60.0
    max_backoff_s: float = 5.0


class LinkState(enum.Enum):
    """Where the worker process stands."""

    STARTING = "starting"  # spawned, or told what it needs to know; only on_start may call
    UP = "up"  # answers calls
    DOWN = "down"  # died; a new one starts after a pause
    CLOSED = "closed"  # shut down on purpose, for good


class WorkerLink(asyncio.Protocol):
    """One worker process and the calls in flight. Belongs to one event loop."""

    def __init__(self, options: WorkerOptions, arena: Arena) -> None:
        self.options = options
        self.arena = arena
        self.state = LinkState.DOWN
        self.restarts = 0
        self.facts: Facts = {}
        self.pid: int | None = None
        self.on_start: Callable[[WorkerLink], Awaitable[None]] | None = None
        self.on_state: Callable[[LinkState], None] = lambda _: None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 0
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the worker and keep it running; returns when it is up.

        Raises:
            WorkerFault: the first start failed.
        """
        await self._spawn()
        self._supervisor = asyncio.create_task(self._supervise(), name="worker-supervisor")

    async def close(self) -> None:
        """End the worker; calls in flight fail with WorkerRestarting."""
        self._set(LinkState.CLOSED)
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            await _end_process(self._process)
        self._fail_calls()

    def call(self, op: str, **fields: Any) -> asyncio.Future[Any]:
        """Send a call; the future brings its result.

        Cancelling the future drops a measurement in the worker; an inference already sent runs
        to its end unheard.

        Raises:
            WorkerRestarting: (at once) no worker is up.
        """
        if self.state is not LinkState.UP:
            raise WorkerRestarting("the device worker is restarting; try again in a moment")
        return self._send(op, fields)

    def startup_call(self, op: str, **fields: Any) -> asyncio.Future[Any]:
        """As ``call``, for ``on_start`` only: the worker is told what it must know first."""
        assert self.state is LinkState.STARTING
        return self._send(op, fields)

    def _send(self, op: str, fields: dict[str, Any]) -> asyncio.Future[Any]:
        assert self._transport is not None
        self._next_call += 1
        number = self._next_call
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        self._transport.write(encode({"id": number, "op": op, **fields}))
        if op in ("measure", "compare"):
            future.add_done_callback(lambda done: self._drop(number, done))
        return future

    def _drop(self, number: int, done: asyncio.Future[Any]) -> None:
        """Tell the worker that nobody waits for a measurement any more."""
        waiting = self._calls.pop(number, None)
        if done.cancelled() and waiting is not None and self.state is LinkState.UP:
            self._send("cancel", {"target": number}).add_done_callback(
                lambda future: future.cancelled() or future.exception()
            )

    # -- asyncio.Protocol ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Hand each answer to its caller."""
        for message in self._decoder.feed(data):
            future = self._calls.pop(message["id"], None)
            if future is None or future.done():
                continue
            if "error" in message:
                future.set_exception(_revive(message["error"]))
            else:
                future.set_result(message["result"])

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker is gone: nobody in flight will be answered."""
        if self.state is not LinkState.CLOSED:
            self._set(LinkState.DOWN)
        self._fail_calls()

    def _fail_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(
                    WorkerRestarting("the device worker died while it had this request; try again")
                )

    # -- the process --------------------------------------------------------------------------

    async def _spawn(self) -> None:
        self._set(LinkState.STARTING)
        began = monotonic()
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                pass_fds=(theirs.fileno(), self.arena.fd),
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **_thread_environment()},
            )
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._decoder = FrameDecoder()
        ours.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self._transport = transport
        try:
            async with asyncio.timeout(self.options.start_timeout_s):
                self.facts = await self._send("device", {})
                if self.on_start is not None:
                    await self.on_start(self)
        except (TimeoutError, BraidError) as error:
            transport.abort()
            await _end_process(self._process)
            raise WorkerFault(f"the device worker did not start: {error}") from error
        self._set(LinkState.UP)
        log.info("worker %d up after %.2f s", self.pid, monotonic() - began)

    def _command(self, link_fd: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "engine.worker.main",
            f"--link-fd={link_fd}",
            f"--arena-fd={self.arena.fd}",
            f"--arena-bytes={self.arena.size_bytes}",
            f"--threads={self.options.threads}",
            f"--activation-bytes={self.options.activation_bytes}",
        ]

    async def _supervise(self) -> None:
        """Restart the worker whenever it ends; pause longer when it ends at once."""
        pause = 0.0
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.error("worker %s ended with %s; restarting", self.pid, code)
            self._set(LinkState.DOWN)
            self._fail_calls()
            self.restarts += 1
            began = monotonic()
            await asyncio.sleep(pause)
            try:
                await self._spawn()
            except (WorkerFault, OSError) as error:
                log.error("%s", error)
            lived = monotonic() - began
            pause = 0.0 if lived > 10.0 else min(self.options.max_backoff_s, pause * 2 + 0.1)

    def _set(self, state: LinkState) -> None:
        if state is not self.state:
            self.state = state
            self.on_state(state)


def _thread_environment() -> dict[str, str]:
    """OpenMP threads that wait spin only briefly: lanes of the next stage need their cores."""
    return {"GOMP_SPINCOUNT": "10000", "PYTHONUNBUFFERED": "1"}


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Terminate, then kill after a moment."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(2.0):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _revive(error: dict[str, str]) -> BraidError:
    """The worker's error as an exception of the same class."""
    kind = getattr(errors, error["type"], WorkerFault)
    if not (isinstance(kind, type) and issubclass(kind, BraidError)):
        kind = WorkerFault
    revived = BraidError.__new__(kind)
    Exception.__init__(revived, error["message"])
    if isinstance(revived, errors.ResourceExhausted):
        revived.retry_after_s = None
    return revived
