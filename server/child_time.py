"""Waiting for a child process by the time that it had a core, not by the clock.

On a busy machine a process that gives way may get a core for a second of each minute. It has not
failed for that: it has failed if it does nothing though nobody keeps it, or has had its share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 10
"""So many times the limit may pass by the clock, if the process does something in each round."""

LEAST_CPU_S = 0.001
"""Less than this in a round is nothing."""

NEARLY_ALL = 0.9
"""Of its limit: a process that had a core all the time has used this much and is not let off."""


class DidNothing(Exception):
    """The process stands still."""


class TookTooLong(Exception):
    """The process had the time it was given."""


def cpu_time_s(pid: int) -> float:
    """Seconds for which all threads of a process have run; 0.0 once it has ended."""
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
    """Wait until ``answer`` is there; it is not cancelled.

    Args:
        answer: what the child says next.
        pid: of the child.
        seconds: a round, in which it has to do something.
        cpu_seconds: that it may run for.
        cpu_time_s: for which a process has run so far.

    Raises:
        DidNothing: it has not run for a whole round.
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
