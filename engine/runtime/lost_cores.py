"""Waits of a process's threads for cores that other processes took from them."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path


class LostCores:
    """Waits of all threads of this process for their cores since this was made.

    How long they waited takes 0.1 ms to find out, in which threads that wait for their next work
    stop to spin; without that, any wait is as long as it can be.
    """

    def __init__(self, *, how_long: bool) -> None:
        self._how_long = how_long
        self._waited_ns = _waits_of_threads_ns() if how_long else {}
        self._switches = _involuntary_switches()

    def waited_ns(self) -> int:
        """Nanoseconds, of all threads together; 0 if none of them lost its core to another one."""
        if _involuntary_switches() == self._switches:
            return 0
        if not self._how_long:
            return sys.maxsize
        waits_ns = _waits_of_threads_ns()
        return sum(waited - self._waited_ns.get(name, 0) for name, waited in waits_ns.items())


def _involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _waits_of_threads_ns() -> dict[str, int]:
    """By thread id: nanoseconds that a thread of this process has been ready to run and waited."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError, IndexError):  # the thread has ended, or another kernel
            statistics = Path(f"/proc/self/task/{thread}/schedstat").read_text()
            found[thread] = int(statistics.split()[1])
    return found
