"""Runs of whole models that are timed while requests go first.

timed(call)        runs on the device's thread and pauses (braid.engine.runtime.yielding)
timed_aside(call)  cannot pause: runs in a thread that gives way (braid.engine.runtime.priority)

Latencies are without the time that requests took, and other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns, sleep, thread_time_ns

from torch import Tensor

from braid.core.measurement import check_latency
from braid.engine.runtime.lost_cores import LostCores
from braid.engine.runtime.priority import thread_gives_way
from braid.engine.runtime.yielding import (
    CoreWait,
    NetClock,
    Waited,
    YieldToRequests,
    in_thread,
    waited_for_core_ns,
)

Tensors = Mapping[str, Tensor]

HARMLESS = 0.05
"""Largest part of a run that waits for cores may take without counting as interruption: what else
wakes up on the machine takes a core from most runs of milliseconds, also when they serve."""

HAND_OVER_S = 0.0005
"""Seconds in which the thread that handed work to another falls asleep, and lanes stop to spin."""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run of a whole model."""

    outputs: Tensors
    latency_us: float  # net of requests and of waits for the core
    was_interrupted: bool = False
    busy_us: float = 0.0  # CPU time of the thread that ran it, in microseconds
    waited: float = 0.0  # longest wait of a thread for its core, relative to ``latency_us``

    def __post_init__(self) -> None:
        check_latency(self.latency_us)


Run = Callable[[Tensors, YieldToRequests], TimedRun]


def timed(call: Callable[[Tensors, YieldToRequests], Tensors]) -> Run:
    """A ``Run`` of ``call`` on the calling thread, timed by its clock."""

    def run(inputs: Tensors, pause: YieldToRequests) -> TimedRun:
        clock = NetClock(pause, harmless=HARMLESS)
        busy_ns, start = thread_time_ns(), perf_counter_ns()
        outputs = call(inputs, clock)
        left = clock.net_time(start, perf_counter_ns())
        busy_us = (thread_time_ns() - busy_ns) / 1e3
        return TimedRun(outputs, left.us, left.was_interrupted, busy_us, left.waited)

    return run


def timed_aside(call: Callable[[Tensors], Tensors]) -> Run:
    """A ``Run`` of ``call``, which cannot pause, in a thread of low priority, timed there."""

    def run(inputs: Tensors, pause: YieldToRequests) -> TimedRun:
        clock = NetClock(pause, harmless=HARMLESS)

        def work() -> tuple[Tensors, int, int, Waited]:
            thread_gives_way()
            sleep(HAND_OVER_S)
            lost_cores, wait = (
                LostCores(how_long=True),
                CoreWait(perf_counter_ns, waited_for_core_ns),
            )
            start = perf_counter_ns()
            outputs = call(inputs)
            end = perf_counter_ns()
            threads_ns, longest_ns = lost_cores.waited_ns()
            waited = wait.within(start, end)
            return (
                outputs,
                start,
                end,
                waited._replace(threads_ns=threads_ns, longest_ns=longest_ns),
            )

        outputs, start, end, waited = in_thread(work, clock)
        left = clock.net_time(start, end, waited)
        busy_us = max(0, end - start - waited.least) / 1e3
        return TimedRun(outputs, left.us, left.was_interrupted, busy_us, left.waited)

    return run
