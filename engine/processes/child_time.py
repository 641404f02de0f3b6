"""Waits for a child process that are limited by its CPU time, not by the clock.

On a busy machine a process of low priority may get a core for a second of each minute. That is no
failure: a process has failed if it uses no CPU time in a round, or has used all it was given.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 10  # rounds that may pass by the clock, if the process runs in each
LEAST_CPU_S = 0.001  # in a round; a process that used less stands still

NEARLY_ALL = 0.9
"""Part of the limit of CPU seconds that counts as all of it: a process with a core of its own has
used this much after one round."""


class DidNothing(Exception):
    """A process used no CPU time in a whole round."""


class TookTooLong(Exception):
    """A process used all the time that it was given."""


def cpu_time_s(pid: int) -> float:
    """CPU seconds of all threads of a process together; 0.0 after its end."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # linux/posix-timers.h: CPUCLOCK_SCHED of a pid
    except OSError:
        return 0.0


async def wait_for_child(
    answer: asyncio.Future[Any],
    pid: int,
    seconds: float,
    *,
    cpu_seconds: float,
    cpu_time_s: Callable[[int], float] = cpu_time_s,
) -> None:
    """Wait until ``answer``, the next message of the child, is done; it is not cancelled.

    Raises:
        DidNothing: the child has not run for a whole round of ``seconds``.
        TookTooLong: it has run for ``cpu_seconds``, or for ``ROUNDS`` rounds by the clock.
    """
    began_s = before_s = cpu_time_s(pid)
    for _ in range(ROUNDS):
        await asyncio.wait([answer], timeout=seconds)
        if answer.done():
            return
        now_s = cpu_time_s(pid)
        if now_s - began_s >= NEARLY_ALL * cpu_seconds:
            raise TookTooLong
        if now_s - before_s < LEAST_CPU_S:
            raise DidNothing
        before_s = now_s
    raise TookTooLong
