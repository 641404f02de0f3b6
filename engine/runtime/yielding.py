"""Yielding to inference requests in long work on the device's thread, and net times.

Binding a large network takes a second, a run of a large batch too, and a request does not wait for
that. Long work calls a ``YieldToRequests`` between its steps, named ``pause``: it answers the
inference requests that have arrived. A measured time counts without that, and without the time
in which other processes had the core: ``NetClock``.

    clock      ├ counter ──────┤ start ═══════════ end ├────── counter ┤
    waiting         2 ms of it here, or in there?

The kernel's counter of waiting is read before the start and after the end of what is timed, so a
part of the waiting may lie outside. Only what cannot have fitted there is taken off (``CoreWait``):
taking off all of it made latencies of 0 us under load.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import ceil
from time import get_clock_info, perf_counter_ns
from typing import NamedTuple, TypeVar

from braid.core.descriptors import Descriptor
from braid.engine.runtime.lost_cores import LostCores

T = TypeVar("T")

NowNs = Callable[[], int]

Start = Callable[[Callable[[], None]], object]
"""Function that begins work in another thread and returns at once."""

RESOLUTION_NS = max(1, ceil(get_clock_info("perf_counter").resolution * 1e9))
"""Resolution of the clock, in nanoseconds, at least 1."""


class YieldToRequests:
    """Yields to nothing: for work that no request waits behind."""

    yielded_s: float = 0.0  # of all answers so far

    @property
    def arrivals(self) -> int | None:
        """Descriptor that can be read when a request has arrived; None: none ever arrives."""
        return None

    def answer(self) -> bool:
        """Answer the requests that have arrived; returns whether there were any."""
        return False

    def __call__(self) -> bool:
        """As ``answer``, and if there were any, wait a moment for those that follow."""
        return False


no_pause = YieldToRequests()


class NetTime(NamedTuple):
    """A measured time without what was taken from it."""

    us: float
    was_interrupted: bool  # by more than what does not show
    waited: float = 0.0  # longest wait of a thread for its core, relative to ``us``

    def beside(self, longest_ns: int) -> NetTime:
        """The same, where a thread waited for so long in it or shortly before."""
        waited = waited_part(longest_ns, self.us * 1e3)
        return self._replace(
            was_interrupted=self.was_interrupted or waited > _HARMLESS,
            waited=max(self.waited, waited),
        )


_HARMLESS = 0.01
"""Largest part of a time that a wait for the core may take without counting as interruption."""

_SHORT_NS = 10_000_000
"""Nanoseconds from which on another thread's short loss of its core does not count either."""


WAKING_NS = 200_000
"""Nanoseconds of waiting that do not count: on an idle machine, too, threads take some to wake up,
and a core that is taken is away for longer."""


def waited_part(longest_ns: float, time_ns: float) -> float:
    """Wait of a thread for its core, relative to a time in which it should have worked."""
    return max(0.0, longest_ns - WAKING_NS) / time_ns


class Waited(NamedTuple):
    """Bounds of a thread's wait for its core in a measured time, in nanoseconds."""

    least: int  # certainly in it
    most: int  # in it, or shortly before or after it
    threads_ns: int = 0  # all threads of the process together, if any of them lost its core
    longest_ns: int = 0  # of the one of them that waited longest; 0 also where that is not known


class CoreWait:
    """Wait of the calling thread for its core since this was made; made and read by one thread."""

    def __init__(self, now_ns: NowNs, waited_ns: NowNs) -> None:
        """Begin now; ``waited_ns`` returns how long the thread has waited since it started."""
        self._clock_ns, self._counter_ns = now_ns, waited_ns
        self._began_ns, self._waited_ns = now_ns(), waited_ns()

    def leave_out(self, waited_ns: int) -> None:
        """Do not count this part of the waiting: it lies in a span that is counted elsewhere."""
        self._waited_ns += waited_ns

    def within(self, start_ns: int, end_ns: int, spans_outside_ns: int = 0) -> Waited:
        """Bounds of the waiting in a time that has just ended.

        ``spans_outside_ns`` is how much of the time around it was left out (``leave_out``).
        """
        waited_ns = max(0, self._counter_ns() - self._waited_ns)
        around_ns = (self._clock_ns() - self._began_ns) - (end_ns - start_ns) - spans_outside_ns
        return Waited(max(0, waited_ns - max(0, around_ns)), waited_ns)


class NetClock(YieldToRequests):
    """A clock that takes off the time in which requests were answered.

    Also of what the kernel took: until ``left`` this thread may have waited for its core, or one
    that works with it have lost its own to another process. Made and read by one thread.
    """

    def __init__(
        self,
        pause: YieldToRequests,
        now_ns: NowNs = perf_counter_ns,
        waited_ns: NowNs | None = None,
        harmless: float | None = None,
    ) -> None:
        """Begin now.

        Args:
            waited_ns: returns how long this thread has waited for its core since it started.
            harmless: part of a time that waits for cores may take; None: 0.01 of this thread's
                time, none of other threads' short times.
        """
        self._pause = pause
        self._harmless = _HARMLESS if harmless is None else harmless
        self._spans_ns: list[tuple[int, int]] = []
        self.count = 0  # of pauses in which something ran
        self._now_ns = now_ns
        self._counter_ns = waited_ns or waited_for_core_ns
        self._wait = CoreWait(now_ns, self._counter_ns)
        self._lost_cores = LostCores(how_long=harmless is not None)

    @property
    def arrivals(self) -> int | None:
        return self._pause.arrivals

    def answer(self) -> bool:
        return self._counted(self._pause.answer)

    def __call__(self) -> bool:
        return self._counted(self._pause)

    def _counted(self, pause: Callable[[], bool]) -> bool:
        # The counter outside: a wait between the two is left out, not taken off twice.
        waited_ns, start = self._counter_ns(), self._now_ns()
        any_ran = pause()
        self._spans_ns.append((start, self._now_ns()))
        self._wait.leave_out(self._counter_ns() - waited_ns)
        self.count += any_ran
        return any_ran

    def net_time(self, start_ns: int, end_ns: int, elsewhere: Waited | None = None) -> NetTime:
        """A time that has just ended, without answers to requests and waits for the core.

        ``elsewhere`` is how long another thread waited for its core, if that one did the work; the
        hand-over to it, in which one thread always gives way to the other, does not count.
        Where more was taken than there was, nothing is known: then it is the whole time, as
        interrupted. What is told is never below the clock's resolution.
        """
        elapsed_ns = end_ns - start_ns
        spans = [min(end, end_ns) - max(start, start_ns) for start, end in self._spans_ns]
        answered_ns = sum(span for span in spans if span > 0)
        if elsewhere is None:
            threads_ns, longest_ns = self._lost_cores.waited_ns()
            outside_ns = sum(end - start for start, end in self._spans_ns) - answered_ns
            waited = self._wait.within(start_ns, end_ns, outside_ns)
            taken_ns = answered_ns + waited.least
        else:
            waited = elsewhere
            threads_ns, longest_ns = elsewhere.threads_ns, elsewhere.longest_ns
            taken_ns = max(answered_ns, waited.least)  # it also waits while this thread answers
        left_ns = elapsed_ns - taken_ns
        if left_ns <= RESOLUTION_NS:
            elapsed_ns = max(elapsed_ns, RESOLUTION_NS)
            return NetTime(elapsed_ns / 1e3, True, waited_part(longest_ns, elapsed_ns))
        most_ns = max(waited.most, threads_ns if left_ns < _SHORT_NS else 0)
        was_interrupted = self.count > 0 or most_ns > self._harmless * left_ns
        return NetTime(left_ns / 1e3, was_interrupted, waited_part(longest_ns, left_ns))


class _Statistics:
    """The kernel scheduler's statistics of the thread that makes this."""

    def __init__(self) -> None:
        self._file: Descriptor | None = None
        with suppress(OSError):  # another system, or another kernel
            path = "/proc/thread-self/schedstat"
            self._file = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def waited_ns(self) -> int:
        file = self._file
        return 0 if file is None else int(os.pread(file.fileno(), 64, 0).split()[1])


class _OfThread(threading.local):
    statistics: _Statistics | None = None  # opened at the first use; goes with its thread


_own = _OfThread()


def waited_for_core_ns() -> int:
    """Nanoseconds that the calling thread has been ready to run and waited; 0 if unknown."""
    if _own.statistics is None:
        _own.statistics = _Statistics()
    return _own.statistics.waited_ns()


def in_thread(call: Callable[[], T], pause: YieldToRequests) -> T:
    """Run ``call``, which gives up the GIL, in a thread of its own; answers requests meanwhile."""
    threads: list[threading.Thread] = []
    context = copy_context()  # with the signal that stops the work, engine/runtime/stopping.py

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work, daemon=True))
        threads[0].start()

    (result,) = elsewhere([(start, lambda: context.run(call))], pause)
    threads[0].join()
    return result


def elsewhere(started: Sequence[tuple[Start, Callable[[], T]]], pause: YieldToRequests) -> list[T]:
    """Return what calls return that go on in other threads at once; answers requests meanwhile.

    Args:
        started: for each call, what begins it in its thread, and the call.
    """
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    done = Descriptor(os.eventfd(0))  # closed with the last thread that tells of its end

    def work(number: int, call: Callable[[], T]) -> None:
        try:
            results[number] = call()
        except BaseException as error:
            failures.append(error)
        finally:
            os.eventfd_write(done.fileno(), 1)

    for number, (start, call) in enumerate(started):
        start(partial(work, number, call))
    _answer_until(done.fileno(), len(started), pause)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(started))]


def _answer_until(done: int, count: int, pause: YieldToRequests) -> None:
    """Answer what arrives until the counter of the descriptor ``done`` has reached ``count``."""
    while count:
        poller = select.poll()
        poller.register(done, select.POLLIN)
        if pause.arrivals is not None:  # the link may close meanwhile
            poller.register(pause.arrivals, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll()]
        if done in ready:
            count -= os.eventfd_read(done)
        else:
            pause.answer()
