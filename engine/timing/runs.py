"""Runs of whole models that are timed while requests go first.

timed(call)        runs on the device's thread and pauses (braid.engine.runtime.yielding)
timed_aside(call)  cannot pause: runs in a thread that gives way (braid.engine.runtime.priority)

Latencies are without the time that requests took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns, sleep, thread_time_ns

from torch import Tensor

from braid.core.measurement import check_latency
from braid.engine.runtime.priority import thread_gives_way
from braid.engine.runtime.yielding import NetClock, YieldToRequests, in_thread

Tensors = Mapping[str, Tensor]

HAND_OVER_S = 0.0005  # until the thread that handed work over sleeps, and lanes stop to spin


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run of a whole model."""

    outputs: Tensors
    latency_us: float  # net of requests
    was_interrupted: bool = False
    busy_us: float = 0.0  # CPU time of the thread that ran it, in microseconds

    def __post_init__(self) -> None:
        check_latency(self.latency_us)


Run = Callable[[Tensors, YieldToRequests], TimedRun]


def timed(call: Callable[[Tensors, YieldToRequests], Tensors]) -> Run:
    """A ``Run`` of ``call`` on the calling thread, timed by its clock."""

    def run(inputs: Tensors, pause: YieldToRequests) -> TimedRun:
        clock = NetClock(pause)
        busy_ns, start = thread_time_ns(), perf_counter_ns()
        outputs = call(inputs, clock)
        left = clock.net_time(start, perf_counter_ns())
        busy_us = (thread_time_ns() - busy_ns) / 1e3
        return TimedRun(outputs, left.us, left.was_interrupted, busy_us)

    return run


def timed_aside(call: Callable[[Tensors], Tensors]) -> Run:
    """A ``Run`` of ``call``, which cannot pause, in a thread of low priority, timed there."""

    def run(inputs: Tensors, pause: YieldToRequests) -> TimedRun:
        clock = NetClock(pause)

        def work() -> tuple[Tensors, int, int]:
            thread_gives_way()
            sleep(HAND_OVER_S)
            start = perf_counter_ns()
            return call(inputs), start, perf_counter_ns()

        outputs, start, end = in_thread(work, clock)
        left = clock.net_time(start, end)
        return TimedRun(outputs, left.us, left.was_interrupted, (end - start) / 1e3)

    return run
