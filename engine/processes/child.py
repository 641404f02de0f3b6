"""A child process of the front end: how it is started and ended, and how it ended.

    device worker, measuring process    engine/link/worker_process.py       frames on sockets, logs
    importer                            engine/importer/host/launch.py      lines on a socket
    planner                             compiler/planner.py                 lines on stdin, stdout
        └──> ChildProcess ──> fork_server.py ──> runs MODULE as ``python -m`` does

A child leads a session of its own, so that a signal from a terminal does not reach it and it is
killed with all that it started. It ends with its parent.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Self

from braid.core.background import to_the_end
from braid.core.descriptors import connect
from braid.engine.processes.child_time import DidNothing, TookTooLong, wait_for_child
from braid.engine.processes.fork_server import ENDED, ForkServer
from braid.engine.processes.log_lines import relay

MAX_LINE_BYTES = 256 << 20  # all the stages of a large graph in one question
TAIL_BYTES = 8 << 10
LAST_WORDS_S = 1.0
START_SECONDS = 60.0  # in which the fork server has to run, if nothing is forked
MOST_SERVERS = 5  # that a start asks, one after the other has ended
ENDING_SECONDS = 1.0

_COUNTERS = Path("/proc/vmstat")


class Streams(enum.Enum):
    """Stdin, stdout and stderr of a child."""

    KEPT = enum.auto()  # no stdin; the end of its output is kept
    LOGGED = enum.auto()  # no stdin; its output is logged, see log_lines.py
    LINES = enum.auto()  # stdin and stdout carry lines; the end of stderr is kept


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """End of a child process."""

    status: int  # exit code, or minus the number of the signal that killed it
    output: str = ""  # end of what it printed, unless that was inherited
    was_memory_short: bool | None = None  # None: the kernel does not count that

    @property
    def signal_name(self) -> str:
        if self.status >= 0:
            return ""
        names = {int(number): number.name for number in signal.Signals}
        return names.get(-self.status, f"signal {-self.status}")

    @property
    def text(self) -> str:
        """The end of a sentence about the child, for the log."""
        if not self.signal_name:
            return f"it ended with exit code {self.status}"
        short = self.status == -signal.SIGKILL and self.was_memory_short
        return f"it was killed by {self.signal_name}{' for want of memory' if short else ''}"


class Stream(asyncio.StreamReaderProtocol):
    """A connected socket whose other end a child has; one that was killed has closed it."""

    def __init__(self, limit: int = 1 << 16) -> None:
        self.reader = asyncio.StreamReader(limit=limit)
        super().__init__(self.reader)
        self.writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, opened: ExitStack, limit: int = 1 << 16) -> tuple[Self, socket.socket]:
        """Return a stream, which is closed if ``opened`` is, and the child's end of it."""
        ours, theirs = socket.socketpair()
        with ExitStack() as failing:
            failing.callback(theirs.close)
            transport, stream = await connect(lambda: cls(limit), ours)
            failing.pop_all()
        opened.callback(transport.close)
        loop = asyncio.get_running_loop()
        stream.writer = asyncio.StreamWriter(transport, stream, stream.reader, loop)
        return stream, theirs

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)


class ChildProcess:
    """A child, of one event loop; as an async context manager it kills the child and waits."""

    def __init__(self, forked: _Forked, opened: Sequence[Stream], streams: Streams) -> None:
        self.pid = forked.pid
        self._forked = forked
        self._opened = opened
        self._tail = bytearray()
        self._oom_kills = oom_kills()  # before
        logged, kept = (opened, None) if streams is Streams.LOGGED else ((), opened[-1])
        self._relaying = [asyncio.create_task(relay(stream.reader, self.pid)) for stream in logged]
        self._status = asyncio.create_task(self._until_reported())
        self._end = asyncio.create_task(self._until_end(kept))

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        streams: Streams = Streams.KEPT,
        given: Mapping[str, int] | None = None,
        folder: Path | None = None,
    ) -> Self:
        """Run ``python -m module *arguments``, with this process's libraries loaded already.

        ``environment`` is all that the child is told, beside what loading libraries read (see
        ``core.child_process``). It inherits descriptors ``given``; ``--NAME=NUMBER`` tells their
        numbers there. Raises ``OSError`` if no process, memory or descriptor is left.
        """
        inherited = [f"--{name}={number}" for number, name in enumerate(given or {}, start=3)]
        request = {
            "module": module,
            "arguments": [*inherited, *arguments],
            "environment": dict(environment),
            "folder": str(folder or Path.cwd()),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        with ExitStack() as theirs, ExitStack() as ours:
            opened, descriptors = await _open(streams, ours, theirs)
            forked = await _fork(request, [*descriptors, *(given or {}).values()])
            ours.pop_all()
        return cls(forked, opened, streams)

    @property
    def is_alive(self) -> bool:
        return not self._status.done()

    async def send(self, line: bytes) -> None:
        """Write a line to the child's stdin; a dead child is noticed by ``receive``."""
        writer = self._opened[0].writer
        if writer.is_closing():
            return
        with suppress(ConnectionError):
            writer.write(line)
            await writer.drain()

    async def receive(self) -> bytes:
        """Return the next line of the child's stdout, or b"" once it has ended."""
        line = await self._opened[0].reader.readline()
        return line if line.endswith(b"\n") else b""

    async def wait(self) -> ChildEnd:
        """Output, where it is kept, has ended then, too, and what the child started is killed."""
        return await asyncio.shield(self._end)

    def kill(self) -> None:
        """Kill the child and what it started, unless it is known to have ended."""
        if self.is_alive:
            self._kill_group()

    async def end(self, grace_s: float = 0.0) -> ChildEnd:
        """Terminate the child, kill it after ``grace_s`` seconds; 0: kill it at once."""
        if grace_s and self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            await asyncio.wait([self._end], timeout=grace_s)
        self.kill()
        return await self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self.end())

    async def _until_reported(self) -> int:
        """Wait for the report of the child's end, which takes with it what it started."""
        line = await self._forked.report.reader.readline()
        self._forked.server.release()
        if line:
            return int(line)
        self._kill_group()  # the fork server was killed, and the child with it
        return -signal.SIGKILL

    async def _until_end(self, kept: Stream | None) -> ChildEnd:
        """Keep the end of what the child prints until it has ended."""
        try:
            while kept is not None and (chunk := await kept.reader.read(4096)):
                self._tail += chunk
                del self._tail[:-TAIL_BYTES]
            status = await self._status
            if self._relaying:  # its last words come before the log says that it ended
                _, left = await asyncio.wait(self._relaying, timeout=LAST_WORDS_S)
                for relaying in left:
                    relaying.cancel()
        finally:
            for stream in (self._forked.report, *self._opened):
                stream.writer.close()
        short = is_more(self._oom_kills, oom_kills())
        return ChildEnd(status, self._tail.decode(errors="replace"), short)

    def _kill_group(self) -> None:
        for kill in (os.killpg, os.kill):  # it may not lead a group yet
            with suppress(ProcessLookupError, PermissionError):  # nothing is left
                kill(self.pid, signal.SIGKILL)


async def _open(
    streams: Streams, ours: ExitStack, theirs: ExitStack
) -> tuple[list[Stream], list[int]]:
    """Open the ends of a child's streams, here and there; returns those here, and 0 to 2 there."""
    limits = {
        Streams.KEPT: [1 << 16],
        Streams.LOGGED: [1 << 16, 1 << 16],
        Streams.LINES: [MAX_LINE_BYTES, 1 << 16],
    }
    opened, descriptors = list[Stream](), list[int]()
    for limit in limits[streams]:
        stream, end = await Stream.open(ours, limit)
        opened.append(stream)
        descriptors.append(theirs.enter_context(end).fileno())
    first, last = descriptors[0], descriptors[-1]
    if streams is Streams.LINES:
        return opened, [first, first, last]
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    theirs.callback(os.close, nothing)
    return opened, [nothing, first, last]


@dataclass(frozen=True, slots=True)
class _Forked:
    """A child that was forked, which is killed if its report is closed here."""

    server: ForkServer
    report: Stream
    pid: int


async def _fork(request: Mapping[str, Any], descriptors: Sequence[int]) -> _Forked:
    """Fork a child, by a new server where one has ended; ``OSError`` if nothing is left."""
    for _ in range(MOST_SERVERS - 1):
        server = ForkServer.running()
        try:
            return await _ask(server, request, descriptors)
        except ConnectionError:
            await _end_of(server)
    return await _ask(ForkServer.running(), request, descriptors)


async def _end_of(server: ForkServer) -> None:
    """Wait, for ``ENDING_SECONDS`` at most: a process that is killed closes its sockets first."""
    deadline = monotonic() + ENDING_SECONDS
    while server.is_alive and monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _ask(
    server: ForkServer, request: Mapping[str, Any], descriptors: Sequence[int]
) -> _Forked:
    """Raises ``ConnectionError`` if the server has ended, ``OSError`` if it cannot fork."""
    with ExitStack() as opened:
        report, reported = await Stream.open(opened)
        with reported:
            server.ask(request, [reported.fileno(), *descriptors])
        opened.callback(server.release)
        answer = asyncio.ensure_future(report.reader.readline())
        opened.callback(answer.cancel)
        try:
            await wait_for_child(answer, server.pid, START_SECONDS, cpu_seconds=inf)
        except (DidNothing, TookTooLong) as error:
            server.kill()
            raise TimeoutError(errno.ETIMEDOUT, "the fork server does not run") from error
        if not (line := answer.result()):
            raise ConnectionResetError(errno.ECONNRESET, ENDED)
        if (pid := int(line)) < 0:
            raise OSError(-pid, os.strerror(-pid))
        opened.pop_all()
        return _Forked(server, report, pid)


def oom_kills(counters: Path = _COUNTERS) -> int | None:
    """Processes killed by the kernel for want of memory, also in containers; None: no counter."""
    try:
        match = re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def is_more(before: int | None, after: int | None) -> bool | None:
    return None if before is None or after is None else after > before
