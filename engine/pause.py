"""How long work on the device's thread lets inference go first.

Binding a large network takes a second, a run of a large batch too, and a request does not wait for
that. Whoever works long calls a ``Pause`` between its steps: it answers the inference requests that
have arrived, on the spot. What is measured counts without that time, and without the time in which
other processes had the core: ``Interruptions``.
"""

from __future__ import annotations

import os
import resource
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Pause:
    """This one is for work that nobody waits behind: it does nothing."""

    @property
    def arrivals(self) -> int | None:
        """A descriptor that can be read when something has arrived; None: nothing ever will."""
        return None

    def answer(self) -> bool:
        """Answer the requests that have arrived; returns whether there were any."""
        return False

    def __call__(self) -> bool:
        """As ``answer``, and if there were any, wait a moment for those that follow."""
        return False


no_pause = Pause()


class Left(NamedTuple):
    """What is left of a time."""

    us: float
    was_interrupted: bool  # by more than what does not show


_HARMLESS = 0.01
"""Of a time: that little a wait for the core does not show in it ..."""

_SHORT_NS = 10_000_000
"""... nor in one this long that another thread lost its core for a moment."""


class Interruptions(Pause):
    """A pause that keeps count of the time that was taken from what is measured around it.

    Also of what the kernel took: until ``left`` this thread may have waited for its core, or one
    that works with it have lost its own to another process. Made and read by one thread.
    """

    def __init__(self, pause: Pause) -> None:
        self._pause = pause
        self._spans_ns: list[tuple[int, int]] = []
        self.count = 0  # of pauses in which something ran
        self._waited_ns = waited_for_core_ns()
        self._switches = involuntary_switches()

    @property
    def arrivals(self) -> int | None:
        """Of the pause itself."""
        return self._pause.arrivals

    def answer(self) -> bool:
        """Answer, and count the time."""
        return self._counted(self._pause.answer)

    def __call__(self) -> bool:
        """Pause, and count the time."""
        return self._counted(self._pause)

    def _counted(self, pause: Callable[[], bool]) -> bool:
        start, waited_ns = perf_counter_ns(), waited_for_core_ns()
        any_ran = pause()
        self._waited_ns += waited_for_core_ns() - waited_ns  # it is in the span
        self._spans_ns.append((start, perf_counter_ns()))
        self.count += any_ran
        return any_ran

    def left(self, start_ns: int, end_ns: int, waited_ns: int | None = None) -> Left:
        """What is left of a time that has just ended, without what was taken from it.

        ``waited_ns`` is how long another thread waited for its core, if that one did the work.
        """
        spans = [min(end, end_ns) - max(start, start_ns) for start, end in self._spans_ns]
        answered_ns = sum(span for span in spans if span > 0)
        if waited_ns is None:
            waited_ns = waited_for_core_ns() - self._waited_ns
            taken_ns = answered_ns + waited_ns
        else:
            taken_ns = max(answered_ns, waited_ns)  # it also waits while this thread answers
        left_ns = max(0, end_ns - start_ns - taken_ns)
        lost_a_core = involuntary_switches() > self._switches and left_ns < _SHORT_NS
        any_ran = self.count > 0
        return Left(left_ns / 1e3, any_ran or lost_a_core or waited_ns > _HARMLESS * left_ns)


def involuntary_switches() -> int:
    """How often a thread of this process has lost its core to another one, ever."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class _Statistics:
    """What the kernel's scheduler keeps of the thread that makes this."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # another system, or another kernel
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def waited_ns(self) -> int:
        return int(os.pread(self._file, 64, 0).split()[1]) if self._file >= 0 else 0


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.statistics = _Statistics()  # goes with its thread


_own = _OfThread()


def waited_for_core_ns() -> int:
    """How long the calling thread has been ready to run and waited, ever; 0 if nobody knows."""
    return _own.statistics.waited_ns()


def in_thread(call: Callable[[], T], pause: Pause) -> T:
    """Do ``call`` in a thread of its own, answering until it is done; for what gives up the GIL."""
    results: list[T] = []
    failures: list[BaseException] = []
    done = os.eventfd(0)

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            failures.append(error)
        finally:
            os.eventfd_write(done, 1)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        _answer_until(done, pause)
        thread.join()
    finally:
        os.close(done)
    if failures:
        raise failures[0]
    return results[0]


def _answer_until(done: int, pause: Pause) -> None:
    """Answer what arrives until the descriptor ``done`` can be read."""
    while True:
        poller = select.poll()
        poller.register(done, select.POLLIN)
        if pause.arrivals is not None:
            poller.register(pause.arrivals, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll()]
        if done in ready:
            return
        pause.answer()
