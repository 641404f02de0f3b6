"""Schedules that rest on figures that prove too little: which serves, and when it is made again.

before ──compared, or of an earlier version──┐
made now ──settled, or compared────> serves <┘ unless something was decided now

In doubt a plan may have been faster than the sequential one in every run. It serves for the time
being, also where the next comparison says nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from braid.core.cpu_times import CpuTimes, read_cpu_times
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Provisional, Schedule

FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S = 30.0, 4.0, 6 * 3600.0
"""A schedule is made again so long after it was found provisional; then after longer and longer."""

LOOK_S, QUIET_LOOKS = 2.0, 3
"""The cores count as idle if each of so many looks, one after the other, finds them so."""

LEAST_IDLE = 0.75
"""Part of the cores' time that is idle on a quiet machine."""


def better_founded(before: Schedule | None, new: Schedule, made_in_s: float) -> Schedule:
    """Return what was made now, unless the one before rests on more.

    That one stays provisional, or settled. ``made_in_s`` is how long it took to make.
    """
    now = new.provenance.provisional
    if now is None:
        return new
    was = None if before is None else before.provenance.provisional
    if before is not None and was is None:
        return before
    now = replace(now, tries=now.tries + (0 if was is None else was.tries), made_in_s=made_in_s)
    if before is None or _certainty(new) >= _certainty(before):
        return new.found_provisional(now)
    return before.found_provisional(replace(now, is_compared=not before.is_undecided))


def with_present_engines(schedule: Schedule, software: Mapping[str, str]) -> Schedule:
    """The schedule; provisional if an engine of one of its parts is gone or another version.

    Args:
        schedule: as it is stored.
        software: versions on its device, by name.
    """
    if schedule.provenance.provisional is not None:
        return schedule
    for part in schedule.plan.parts:
        present = software.get(part.engine, "")
        if present != part.version:
            name = RUNTIMES.get(part.engine, part.engine)
            now = f"{name} is {present}" if present else f"{name} is gone"
            reason = f"a part of it ran in {name} {part.version}, and {now}"
            return schedule.found_provisional(Provisional(reason, 1, at_unix=time.time()))
    return schedule


def _certainty(schedule: Schedule) -> int:
    if not schedule.is_undecided:
        return 2
    return 0 if schedule.serves_sequentially else 1


async def cores_are_idle(
    cpu_times: Callable[[], CpuTimes] = read_cpu_times,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> bool:
    """Look at cores for some seconds; returns whether they were idle for most of each look."""
    for _ in range(QUIET_LOOKS):
        before = cpu_times()
        await sleep(LOOK_S)
        if cpu_times().since(before).idle_part < LEAST_IDLE:
            return False
    return True


def due_at(provisional: Provisional, now: float) -> float:
    """Time from which on a schedule is to be made again, in seconds since 1970."""
    return min(provisional.at_unix, now) + pause_s(provisional.tries)  # clocks are set back, too


def pause_s(tries: int) -> float:
    """Seconds from when a schedule was found provisional for the ``tries``-th time to the next."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * GROWTH ** min(max(tries - 1, 0), 20))
