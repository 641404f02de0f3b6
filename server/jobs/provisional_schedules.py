"""When provisional schedules are made again, and others are made that the present state of a device
lacks: in idle time, one model after the other.

    schedule_chosen ──provisional──> waiting ──due, no job, no requests, idle cores──> job
                    ──settled──────> forgotten   <── still provisional: later and later ──┘
    lacks ──no schedule of this state──> waiting, while the device is in it

The state is the schedules' own, in the store: after a restart they are told again when they serve.
Where several nodes share the store each of them waits for its own machine to be quiet; who is first
adds the job, and the others find that none is due.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from braid.compiler.provisional import (
    LONGEST_PAUSE_S,
    LOOK_S,
    cores_are_idle,
    due_at,
    pause_s,
)
from braid.core.cpu_times import CpuTimes, read_cpu_times
from braid.core.device_state import is_state
from braid.core.errors import BraidError, NotFound
from braid.core.schedule import Provisional, Schedule, ScheduleKey
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import JobStatus, ModelVersion

log = logging.getLogger("braid.jobs")

Place = tuple[str, int]  # name and version of a model


class _Open(NamedTuple):
    """A schedule that is provisional, or does not exist yet."""

    provisional: Provisional
    state: str  # of its device, in which it can be made
    is_lacking: bool = False


@dataclass(slots=True)
class _Waiting:
    """Schedules of a version that are to be made, by device and key."""

    schedules: dict[tuple[str, ScheduleKey], _Open] = field(default_factory=dict)
    tries: int = 0  # by this process
    not_before: float = 0.0  # unix


class ProvisionalSchedules:
    """Has provisional schedules made again. Belongs to the event loop."""

    def __init__(
        self,
        runner: Callable[[], JobRunner],
        quiet: Callable[[], Awaitable[object]],
        cpu_times: Callable[[], CpuTimes] = read_cpu_times,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        is_scheduled: Callable[[str, int, ScheduleKey], bool] = lambda name, version, key: True,
        state_of: Callable[[str], str] = lambda device: "",
    ) -> None:
        """Wait for nothing yet.

        Args:
            runner: returns what runs jobs.
            quiet: returns once requests leave cores.
            cpu_times: of the devices' cores.
            clock: seconds since 1970, by which schedules say when they were found provisional.
            sleep: waits for some seconds.
            is_scheduled: whether a version still has the shape of a schedule.
            state_of: name of the present state of a device.
        """
        self._runner = runner
        self._quiet = quiet
        self._cpu_times = cpu_times
        self._clock = clock
        self._sleep = sleep
        self._is_scheduled = is_scheduled
        self._state_of = state_of
        self._waiting: dict[Place, _Waiting] = {}
        self._told = asyncio.Event()

    def schedule_chosen(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Take a schedule that serves from now on, or whose sequential plan does."""
        place, key = (model.name, model.version), (device, schedule.key)
        provisional, state = schedule.provenance.provisional, schedule.provenance.state
        if provisional is not None:
            self._wait(place, key, _Open(provisional, state))
        else:
            self._settled(place, key)
        if (lacked := (device, replace(schedule.key, state=state))) != key:
            self._settled(place, lacked)  # it exists now

    def lacks(self, model: ModelVersion, device: str, key: ScheduleKey) -> None:
        """Take the key of a schedule that does not exist in the state of a device that it names."""
        place, at = (model.name, model.version), (device, key)
        if place not in self._waiting or at not in self._waiting[place].schedules:
            reason = f"there is none for cores that are {key.state}"
            self._wait(place, at, _Open(Provisional(reason, 1, self._clock()), key.state, True))

    def _wait(self, place: Place, key: tuple[str, ScheduleKey], is_open: _Open) -> None:
        self._waiting.setdefault(place, _Waiting()).schedules[key] = is_open
        self._told.set()

    def _settled(self, place: Place, key: tuple[str, ScheduleKey]) -> None:
        if place in self._waiting:
            self._waiting[place].schedules.pop(key, None)
            if not self._waiting[place].schedules:
                del self._waiting[place]

    async def run(self) -> None:
        """Have what is due made again, until cancelled."""
        while True:
            if not self._waiting:
                self._told.clear()
                await self._told.wait()
            due_at, place = min((self._due_at(entry), at) for at, entry in self._waiting.items())
            if due_at > self._clock() or self._runner().has_jobs:
                await self._sleep(LOOK_S)
                continue
            await self._quiet()
            if await cores_are_idle(self._cpu_times, self._sleep) and not self._runner().has_jobs:
                await self._make_again(place)

    def _due_at(self, waiting: _Waiting) -> float:
        now, present = self._clock(), self._present(waiting)
        first = min((due_at(schedule.provisional, now) for schedule in present), default=inf)
        return max(first, waiting.not_before)

    def _present(self, waiting: _Waiting) -> list[_Open]:
        """Schedules that can be made in the present states of their devices."""
        return [
            schedule
            for (device, _), schedule in waiting.schedules.items()
            if not (is_state(schedule.state) and is_state(self._state_of(device)))
            or schedule.state == self._state_of(device)
        ]

    def _is_due(self, provisional: Provisional) -> bool:
        return due_at(provisional, self._clock()) <= self._clock()

    async def _make_again(self, place: Place) -> None:
        """Run a job for a version to its end; the next one comes later, whatever its end."""
        waiting, (name, version) = self._waiting.get(place), place
        if waiting is None:  # settled meanwhile
            return
        waiting.schedules = {
            (device, key): schedule
            for (device, key), schedule in waiting.schedules.items()
            if self._is_scheduled(name, version, key)
        }
        if not waiting.schedules:  # other lengths were chosen
            del self._waiting[place]
            return
        present = self._present(waiting)
        if not present:  # the device is in another state by now
            return
        lacks_state = any(schedule.is_lacking for schedule in present)
        waiting.tries += 1
        waiting.not_before = self._clock() + pause_s(waiting.tries)
        facts = {"model": name, "version": version}
        try:
            again = self._runner().compare_again
            job = await again(name, version, self._is_due, lacks_state=lacks_state)
            if job is None:
                return
            what = "for the state of its device" if lacks_state else "again, as it is provisional"
            log.info("a schedule is made %s", what, extra={**facts, "job": job.id})
            while not job.state.has_ended:
                await self._sleep(LOOK_S)
                job = await self._runner().find(job.id)
            if job.state is JobStatus.CANCELLED:
                waiting.not_before = self._clock() + LONGEST_PAUSE_S
        except NotFound:  # it was deleted
            self._waiting.pop(place, None)
        except BraidError as error:
            log.warning("not made again", extra={**facts, "reason": str(error)})
