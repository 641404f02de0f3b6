"""One device worker process: its socket, and the calls it has not answered yet.

    start ──> answers calls ──> ends (by itself, or by ``end``): every open call fails

Loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Self

from core.errors import WorkerRestarting
from core.python_process import python_command, python_environment
from engine.worker.arena import Arena
from engine.worker.environment import cpu_environment, cuda_environment
from engine.worker.error_messages import error_from
from engine.worker.frames import FrameDecoder, encode
from engine.worker.options import WorkerEnd, WorkerOptions

OnProgress = Callable[[float], None]
"""Told the fraction done of a long call, now and then."""

END_SECONDS = 2.0  # between SIGTERM and SIGKILL

_MEASUREMENTS = ("facts", "kernels", "measure", "contest")
"""Calls that are dropped when nobody waits any more."""


class WorkerProcess(asyncio.Protocol):
    """A running worker. Belongs to one event loop."""

    def __init__(self) -> None:
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._listeners: dict[int, OnProgress] = {}  # of calls that report how far they are
        self._next_call = 0
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._last_words = ""  # why it ends, if it could say so

    @classmethod
    async def start(cls, options: WorkerOptions, arena: Arena) -> Self:
        """Spawn a worker; calls may be sent at once and are answered when it is up."""
        started = cls()
        ours, theirs = socket.socketpair()
        try:
            started._process = await asyncio.create_subprocess_exec(
                *_command(options, arena, theirs.fileno()),
                pass_fds=(theirs.fileno(), arena.fd),
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment(options),
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        started._transport, _ = await loop.create_connection(lambda: started, sock=ours)
        return started

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended, as far as is known."""
        return self._process is not None and self._process.returncode is None

    async def wait(self) -> WorkerEnd:
        """How it ended, once it has; open calls have failed by then."""
        assert self._process is not None
        code = await self._process.wait()
        self._fail_calls()
        return WorkerEnd.of(code, self._last_words)

    async def end(self) -> None:
        """Terminate the process, kill it after a moment; open calls fail."""
        assert self._process is not None
        if self._transport is not None:
            self._transport.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._fail_calls()

    def send(
        self, op: str, fields: dict[str, Any], on_progress: OnProgress | None = None
    ) -> asyncio.Future[Any]:
        """Send a call; the future brings its result.

        Cancelling the future drops a measurement in the worker; an inference already sent runs
        to its end unheard.
        """
        assert self._transport is not None
        self._next_call += 1
        number = self._next_call
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        if on_progress is not None:
            self._listeners[number] = on_progress
            future.add_done_callback(lambda _: self._listeners.pop(number, None))
        self._transport.write(encode({"id": number, "op": op, **fields}))
        if op in _MEASUREMENTS:
            future.add_done_callback(lambda done: self._drop(number, done))
        return future

    def _drop(self, number: int, done: asyncio.Future[Any]) -> None:
        """Tell the worker that nobody waits for a measurement any more."""
        waiting = self._calls.pop(number, None)
        if done.cancelled() and waiting is not None and self.is_alive:
            self.send("cancel", {"target": number}).add_done_callback(
                lambda future: future.cancelled() or future.exception()
            )

    def data_received(self, data: bytes) -> None:
        """Hand each answer to its caller."""
        for message in self._decoder.feed(data):
            if "lost" in message:
                self._last_words = message["lost"]
                continue
            if "progress" in message:
                if listener := self._listeners.get(message["id"]):
                    listener(message["progress"])
                continue
            future = self._calls.pop(message["id"], None)
            if future is None or future.done():
                continue
            if "error" in message:
                future.set_exception(error_from(message["error"]))
            else:
                future.set_result(message["result"])

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker is gone: nobody in flight will be answered."""
        self._fail_calls()

    def _fail_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(
                    WorkerRestarting("the device worker died while it had this request; try again")
                )


def _environment(options: WorkerOptions) -> dict[str, str]:
    environment = python_environment()
    if options.gpu is None:
        return cpu_environment(environment)
    return cuda_environment(options.gpu, environment)


def _command(options: WorkerOptions, arena: Arena, link_fd: int) -> list[str]:
    return [
        *python_command(options.module),
        f"--link-fd={link_fd}",
        f"--arena-fd={arena.fd}",
        f"--arena-bytes={arena.size_bytes}",
        f"--device={'cpu' if options.gpu is None else 'cuda'}",
        f"--cores={','.join(map(str, options.cores))}",
        f"--threads={options.threads}",
        f"--activation-bytes={options.activation_bytes}",
        f"--timing-repeats={options.timing_repeats}",
        "--pin-threads" if options.pin_threads else "--no-pin-threads",
    ]
