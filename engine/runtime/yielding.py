"""Yielding to inference requests in long work on the device's thread, and net times.

Binding a large network takes a second, a run of a large batch too, and a request does not wait for
that. Long work calls a ``YieldToRequests`` between its steps, named ``pause``: it answers the
inference requests that have arrived. A measured time counts without that: ``NetClock``. What other
processes take of the cores stays in: times are compared in pairs, which see the same machine.
"""

import os
import select
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from math import ceil
from time import get_clock_info, perf_counter_ns
from typing import NamedTuple, TypeVar

from braid.core.descriptors import Descriptor

T = TypeVar("T")

Start = Callable[[Callable[[], None]], object]  # begins work in another thread, and returns

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
    """A measured time without what requests took of it."""

    us: float
    was_interrupted: bool  # by requests


class NetClock(YieldToRequests):
    """A clock that takes off the time in which requests were answered."""

    def __init__(self, pause: YieldToRequests) -> None:
        self._pause = pause
        self._spans_ns: list[tuple[int, int]] = []
        self.count = 0  # of pauses in which something ran

    @property
    def arrivals(self) -> int | None:
        return self._pause.arrivals

    def answer(self) -> bool:
        return self._counted(self._pause.answer)

    def __call__(self) -> bool:
        return self._counted(self._pause)

    def _counted(self, pause: Callable[[], bool]) -> bool:
        start = perf_counter_ns()
        any_ran = pause()
        self._spans_ns.append((start, perf_counter_ns()))
        self.count += any_ran
        return any_ran

    def net_time(self, start_ns: int, end_ns: int) -> NetTime:
        """The whole time, as interrupted, where answers took it all; at least RESOLUTION_NS."""
        elapsed_ns = max(end_ns - start_ns, RESOLUTION_NS)
        spans = [min(end, end_ns) - max(start, start_ns) for start, end in self._spans_ns]
        left_ns = elapsed_ns - sum(span for span in spans if span > 0)
        if left_ns < RESOLUTION_NS:
            return NetTime(elapsed_ns / 1e3, True)
        return NetTime(left_ns / 1e3, self.count > 0)


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
    """Results of calls that go on in threads; ``started``: what begins each, and the call."""
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
