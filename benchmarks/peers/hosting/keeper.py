"""Keeper of one server's process tree: starts it, and ends all of it whatever way it ends itself.

    python keeper.py PARENT COMMAND...     SIGTERM, SIGINT, the end of process PARENT: end the tree

Processes that lose their parent, daemons included, become children of the keeper, so that the tree
is always what descends from it. The standard library only: started once a server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 8.0
"""Seconds that processes have for ending by themselves."""

KILLED_S = 8.0
"""Seconds that processes have for being gone once they were killed."""


def descendants(root: int) -> list[int]:
    """Process ids below ``root``, zombies left out, parents first."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it has ended
                continue
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    below, level = [], [root]
    while level := [child for parent in level for child in children.get(parent, [])]:
        below += level
    return below


def end_tree() -> None:
    """End every descendant of this process and wait until none is left."""
    for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILLED_S)):
        deadline = time.monotonic() + seconds
        _signal_all(number)
        while descendants(os.getpid()) and time.monotonic() < deadline:
            _reap()
            time.sleep(0.02)
            if number == signal.SIGKILL:
                _signal_all(number)  # what was started meanwhile
    _reap()


def _signal_all(number: signal.Signals) -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def main(parent: int, command: list[str]) -> int:
    """Run ``command`` until it, ``parent`` or this process ends; returns its exit status."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def told(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    if os.getppid() != parent:  # it ended before prctl
        return 1
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return process.wait()
    finally:  # a signal may have come while the command was being started
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if process is not None:
            _end_first(process)
        end_tree()


def _end_first(process: subprocess.Popen[bytes]) -> None:
    """End the command alone: a server removes its shared memory while its own children live."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
