"""A child process of the front end: how it is started and ended, and how it ended.

    device worker, measuring process    engine/link/worker_process.py       frames on sockets, logs
    importer                            engine/importer/host/launch.py      lines on a socket
    planner                             compiler/planner.py                 lines on stdin, stdout
        └──> ChildProcess ──> python -P -m MODULE --parent=PID ...

A child leads a session of its own, so that a signal from a terminal does not reach it and it is
killed with all that it started. It is told the id of its parent, and ends with it (see
``core.child_process.end_with_parent``).
"""

from __future__ import annotations

import asyncio
import enum
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from braid.core.background import to_the_end
from braid.core.child_process import python_command, python_environment
from braid.engine.processes.log_lines import relay

MAX_LINE_BYTES = 256 << 20  # all the stages of a large graph in one question
TAIL_BYTES = 8 << 10
LAST_WORDS_S = 1.0

DESCRIPTORS_TO_START = 12
"""At least as many as a start takes for a moment; for three streams uvloop takes ten."""

_COUNTERS = Path("/proc/vmstat")


class Streams(enum.Enum):
    """Stdin, stdout and stderr of a child."""

    INHERITED = (DEVNULL, None, None)  # its output goes where the parent's goes
    KEPT = (DEVNULL, PIPE, STDOUT)  # the end of its output is kept
    LOGGED = (DEVNULL, PIPE, PIPE)  # its output is logged, see log_lines.py
    LINES = (PIPE, PIPE, PIPE)  # stdin and stdout carry lines; the end of stderr is kept


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


class ChildProcess:
    """A running child, or one that has ended. Belongs to one event loop.

    As an async context manager it kills the child on the way out and waits for its end.
    """

    def __init__(self, process: asyncio.subprocess.Process, streams: Streams) -> None:
        self._process = process
        self._tail = bytearray()
        self._oom_kills = oom_kills()  # before
        kept = {Streams.KEPT: process.stdout, Streams.LINES: process.stderr}.get(streams)
        logged = (process.stdout, process.stderr) if streams is Streams.LOGGED else ()
        self._relaying = [
            asyncio.create_task(relay(stream, process.pid)) for stream in logged if stream
        ]
        self._end = asyncio.create_task(self._until_end(kept))

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        streams: Streams = Streams.INHERITED,
        pass_fds: Sequence[int] = (),
        folder: Path | None = None,
    ) -> Self:
        """Run ``python -m module --parent=PID *arguments``.

        Args:
            module: by its full name; its first act is to end with its parent.
            environment: all that the child is told; see ``core.child_process``.
            streams: what its standard streams are.
            pass_fds: descriptors that it inherits, under the same numbers.
            folder: its working folder; None: this process's.

        Raises:
            OSError: no process, memory or descriptor is left.
        """
        stdin, stdout, stderr = streams.value
        _check_descriptors()
        process = await asyncio.create_subprocess_exec(
            *python_command(module, f"--parent={os.getpid()}", *arguments),
            pass_fds=pass_fds,
            cwd=folder,
            env=python_environment(environment),
            start_new_session=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            limit=MAX_LINE_BYTES if streams is Streams.LINES else 1 << 16,
        )
        return cls(process, streams)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended, as far as is known."""
        return self._process.returncode is None

    def count_from_now(self) -> None:
        """Forget that memory was short before now: the child was idle."""
        self._oom_kills = oom_kills()

    @property
    def has_ended(self) -> bool:
        """Whether the kernel says that the process has ended; ``is_alive`` learns it later."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return not self.is_alive or os.waitid(os.P_PID, self.pid, look) is not None
        except ChildProcessError:  # its status was collected, and is on its way
            return True

    async def send(self, line: bytes) -> None:
        """Write a line to the child's stdin; a dead child is noticed by ``receive``."""
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            return
        with suppress(ConnectionError):
            self._process.stdin.write(line)
            await self._process.stdin.drain()

    async def receive(self) -> bytes:
        """Return the next line of the child's stdout, or b"" once it has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return line if line.endswith(b"\n") else b""

    async def wait(self) -> ChildEnd:
        """Wait until the child has ended and, where output is kept, that has ended, too.

        What the child started is killed then. ``end`` does not wait for output that it holds open.
        """
        return await asyncio.shield(self._end)

    def kill(self) -> None:
        """Kill the child and what it started, unless it is known to have ended."""
        if not self._end.done():
            self._kill_group()

    async def end(self, grace_s: float = 0.0) -> ChildEnd:
        """Terminate the child, kill it after ``grace_s`` seconds; 0: kill it at once."""
        if grace_s:
            with suppress(ProcessLookupError):
                self._process.terminate()
            await asyncio.wait([self._end], timeout=grace_s)
        self.kill()
        return await self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self.end())

    async def _until_end(self, kept: asyncio.StreamReader | None) -> ChildEnd:
        """Keep the end of what the child prints until it has ended."""
        while kept is not None and (chunk := await kept.read(4096)):
            self._tail += chunk
            del self._tail[:-TAIL_BYTES]
        status = await self._process.wait()
        self._kill_group()  # what it started
        if self._relaying:  # its last words come before the log says that it ended
            _, left = await asyncio.wait(self._relaying, timeout=LAST_WORDS_S)
            for relaying in left:
                relaying.cancel()
        short = is_more(self._oom_kills, oom_kills())
        return ChildEnd(status, self._tail.decode(errors="replace"), short)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # nothing is left of the group
            os.killpg(self._process.pid, signal.SIGKILL)


def _check_descriptors() -> None:
    """Raise OSError unless enough descriptors are free to start a child.

    A start that runs out of them halfway loses up to six for good in uvloop, which may then raise
    an error without a number, or complain when it forgets the process.
    """
    descriptors: list[int] = []
    try:
        while len(descriptors) < DESCRIPTORS_TO_START:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def oom_kills(counters: Path = _COUNTERS) -> int | None:
    """Count of processes that the kernel has killed for want of memory, also in containers.

    None: the system has no such counter.
    """
    try:
        match = re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def is_more(before: int | None, after: int | None) -> bool | None:
    """Whether a counter has grown; None: it does not exist."""
    return None if before is None or after is None else after > before
