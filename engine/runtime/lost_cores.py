"""Waits of a process's threads for cores that others took from them.

They come from the statistics of the kernel's scheduler. A count of involuntary switches would miss
a thread that wakes up on a core that is taken.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from contextlib import suppress

THREADS = "/proc/self/task"


class ThreadWaits:
    """Waits of the threads of this process for their cores since this was made."""

    def __init__(self) -> None:
        self._before_ns = _statistics.waits_ns()

    def by_thread_ns(self) -> dict[int, int]:
        """By native thread id: nanoseconds that it has been ready to run and waited."""
        waits_ns = _statistics.waits_ns()
        return {
            thread: waited - self._before_ns.get(thread, 0) for thread, waited in waits_ns.items()
        }

    def longest_ns(self) -> int:
        """Nanoseconds that the most delayed thread waited: its work is late by as much."""
        return max(self.by_thread_ns().values(), default=0)


class NoWaits(ThreadWaits):
    """For threads that are more than the cores, which wait for each other: that says nothing."""

    def __init__(self) -> None: ...

    def by_thread_ns(self) -> dict[int, int]:
        return {}


class LostCores:
    """Waits of all threads of this process for their cores since this was made.

    To read how long they waited takes some time, after which threads that wait for their next work
    have stopped to spin; without that, any loss of a core is as long as it can be.
    """

    def __init__(self, *, how_long: bool) -> None:
        self._waits = ThreadWaits() if how_long else None
        self._switches = _involuntary_switches()

    def waited_ns(self) -> tuple[int, int]:
        """Nanoseconds: of all threads together, and of the one that waited longest, if known.

        The former is 0 if no thread lost its core: that threads wake up is part of a run.
        """
        is_lost = _involuntary_switches() != self._switches
        if self._waits is None:
            return sys.maxsize if is_lost else 0, 0
        waits_ns = self._waits.by_thread_ns().values()
        return sum(waits_ns) if is_lost else 0, max(waits_ns, default=0)


def takes_no_part() -> None:
    """Leave the calling thread out from now on: what is measured does not wait for it."""
    _statistics.leave_out(threading.get_native_id())


def _involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class _Statistics:
    """Open files of the kernel scheduler's statistics, one a thread."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # by native thread id
        self._left_out: set[int] = set()
        self._links = 0  # of the folder of threads when it was last looked at: two more than those
        self._lock = threading.Lock()

    def leave_out(self, thread: int) -> None:
        with self._lock:
            self._left_out.add(thread)
            self._links = 0

    def waits_ns(self) -> dict[int, int]:
        """By native thread id: nanoseconds that it has been ready to run and waited."""
        with self._lock:
            if os.stat(THREADS).st_nlink != self._links:
                self._look()
            while True:
                try:
                    return self._read()
                except ProcessLookupError:  # one has ended, and another one begun
                    self._look()

    def _read(self) -> dict[int, int]:
        return {
            thread: int(os.pread(file, 64, 0).split()[1]) for thread, file in self._files.items()
        }

    def _look(self) -> None:
        """Open the files of all threads that there are now."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._links = os.stat(THREADS).st_nlink
        threads = {int(thread) for thread in os.listdir(THREADS)}
        self._left_out &= threads
        for thread in threads - self._left_out:
            with suppress(OSError):  # it has ended, or another kernel
                file = os.open(f"{THREADS}/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                self._files[thread] = file


_statistics = _Statistics()
