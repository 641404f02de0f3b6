"""A contender in a comparison of whole models, and how one of its runs is timed.

A run is timed in the state in which a device serves: idle since the run before, its threads asleep,
its caches what other work on the machine has left of them. Runs without a pause in between took 9
to 15 % less than the same plan took in service (SqueezeNet, 2 cores of an Intel Xeon).

Requests go first even in the middle of a run (docs/decisions/0021-requests-interrupt.md). Their
time does not count; short runs, in which it shows that the caches were lost, are repeated.
"""

import select
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from time import perf_counter_ns, sleep, thread_time_ns

from braid.core.measurement import check_latency
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.priority import thread_gives_way
from braid.engine.runtime.yielding import NetClock, NetTime, YieldToRequests, in_thread
from braid.engine.timing.samples import uninterrupted

HAND_OVER_S = 0.0005  # until the thread that handed work over sleeps, and lanes stop to spin


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run of a whole model."""

    outputs: Arrays
    latency_us: float  # net of requests
    was_interrupted: bool = False
    busy_us: float = 0.0  # CPU time of the thread that ran it, in microseconds

    def __post_init__(self) -> None:
        check_latency(self.latency_us)


Run = Callable[[Arrays, YieldToRequests], TimedRun]


def timed(call: Callable[[Arrays, YieldToRequests], Arrays]) -> Run:
    """A ``Run`` of ``call`` on the calling thread, timed by its clock."""

    def run(inputs: Arrays, pause: YieldToRequests) -> TimedRun:
        clock = NetClock(pause)
        busy_ns, start = thread_time_ns(), perf_counter_ns()
        outputs = call(inputs, clock)
        left = clock.net_time(start, perf_counter_ns())
        busy_us = (thread_time_ns() - busy_ns) / 1e3
        return TimedRun(outputs, left.us, left.was_interrupted, busy_us)

    return run


def timed_aside(call: Callable[[Arrays], Arrays]) -> Run:
    """A ``Run`` of ``call``, which cannot pause, in a thread of low priority, timed there."""

    def run(inputs: Arrays, pause: YieldToRequests) -> TimedRun:
        clock = NetClock(pause)

        def work() -> tuple[Arrays, int, int]:
            thread_gives_way()
            sleep(HAND_OVER_S)
            start = perf_counter_ns()
            return call(inputs), start, perf_counter_ns()

        outputs, start, end = in_thread(work, clock)
        left = clock.net_time(start, end)
        return TimedRun(outputs, left.us, left.was_interrupted, (end - start) / 1e3)

    return run


QUICK_US = 150_000.0  # in shorter runs the state of the caches counts

PAUSE_S = 0.003
"""Seconds from one run to the next when one client sends its next request after each answer, about;
longer than thread pools spin after a run."""

_SHORT_US = 50_000.0  # a shorter run is repeated if it was interrupted


@dataclass(slots=True)
class TimedContender:
    """One way to run the model, and the measurements taken of it."""

    run: Run
    timed_us: Callable[[Arrays], float] | None = None  # runs the model; the device's own time
    activation_bytes: Callable[[], int | None] = lambda: None  # asked when it has run
    turns_us: list[list[float]] = field(default_factory=list)  # of each round
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    tolerance: float | None = None  # of its outputs; None: that of the comparison
    compared: int = 0  # rows of samples whose top class is known ...
    agreed: int = 0  # ... and those where it is the reference's
    problem: str = ""  # why it cannot run; empty if it can
    is_runtime: bool = False  # the whole model in another engine

    @property
    def is_quick(self) -> bool:
        """Whether a run that does not count comes before each sample, to fill the caches."""
        return min(self.all_us, default=0.0) < QUICK_US

    @property
    def all_us(self) -> list[float]:
        return list(chain.from_iterable(self.turns_us))

    @property
    def medians_us(self) -> list[float]:
        return [median(turn_us) for turn_us in self.turns_us]


def sample_of(
    contender: TimedContender, inputs: Arrays, pause: YieldToRequests, idle_s: float
) -> float:
    """Microseconds of one run of a device that was idle for ``idle_s`` seconds before.

    Times by the device itself are of its kernels, to which idle seconds make no difference.
    """
    if (timed_us := contender.timed_us) is not None:
        return uninterrupted(lambda: NetTime(timed_us(inputs), False))

    def sample() -> NetTime:
        idle(idle_s, pause)
        ran = contender.run(inputs, pause)
        was_interrupted = ran.was_interrupted and ran.busy_us <= _SHORT_US
        return NetTime(ran.latency_us, was_interrupted)

    return uninterrupted(sample)


def idle(seconds: float, pause: YieldToRequests) -> None:
    """Let the calling thread sleep; a request that arrives meanwhile is answered and ends it."""
    if pause.arrivals is None:
        sleep(seconds)
        return
    poller = select.poll()
    poller.register(pause.arrivals, select.POLLIN)
    if poller.poll(seconds * 1e3):
        pause()
