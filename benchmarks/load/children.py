"""Child processes: each in a session of its own, terminated on the way out, killed if need be.

They are killed, too, if this process ends without a way out, as by a signal.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.environment import REPOSITORY
from tests.child_processes import kill_children_at_exit


class ChildFailed(Exception):
    """A server or load generator ended, or did not start in time."""


@contextmanager
def running(
    command: Sequence[str], cwd: Path = REPOSITORY, log: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command, its standard streams piped; its messages go to ``log`` if given."""
    kill_children_at_exit()
    with ExitStack() as stack:
        messages = stack.enter_context(log.open("w")) if log else None
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if log is None else messages,
            stderr=messages,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _stop(process)


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints.

    Raises:
        ChildFailed: it ended instead.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ChildFailed(f"{process.args!r} ended with status {process.wait()}")
    return line


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [int(bound.getsockname()[1]) for bound in sockets]


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
