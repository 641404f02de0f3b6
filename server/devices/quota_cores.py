"""Cores of a server under a quota of CPU time: as many as the quota pays for.

Left on all cores, front end, gRPC's threads and workers run at the same time on more cores than the
quota pays for; the kernel then stops all of them until its period (100 ms) ends. On as many cores
as the quota pays for they take turns instead, a few milliseconds each.

Two servers that share a core while others are idle would be slow for ever, as the kernel cannot
move what may not run elsewhere. So the choice is made by what others use, ties by chance, and made
again. Hyperthreads of one core count as half taken by each other; cores of one cache are preferred
(docs/decisions/0075-cores-of-a-quota.md).
"""

import asyncio
import logging
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from braid.core.allowance import CpuAllowance
from braid.core.cpu_layout import CPU_FOLDERS, HYPERTHREADS, LARGEST_CACHE, cores_alike
from braid.server.device_names import parse_devices
from braid.server.settings import Settings

log = logging.getLogger("braid.device")

PROCESSES, STATISTICS = Path("/proc"), Path("/proc/stat")

LOOK_S = 10.0
FIRST_LOOK_S = 1.0

MARGIN = 0.2
"""Part of a core's time that others must use more here than elsewhere before a server moves."""

SIBLING = 0.5
"""What a busy hyperthread takes of the other one of its core."""

FAR = 0.2
"""What a core is worth less that shares no cache with the others."""

_IDLE, _IO_WAIT = 3, 4
_FIELDS = 8  # of a core in /proc/stat; those after it are parts of the first two

_PASSES = 10
_PARENT, _TIMES = 1, slice(11, 15)
"""Fields of /proc/PID/stat after the name; times: user, system, and of children that ended."""


@dataclass(frozen=True, slots=True)
class CpuLayout:
    """Which of some cores are hyperthreads of one core, and which share the largest cache."""

    siblings: Mapping[int, frozenset[int]]  # by core, without itself
    near: Mapping[int, frozenset[int]]


def cpu_layout(cores: Sequence[int], folders: Path = CPU_FOLDERS) -> CpuLayout:
    """Return what the system says; where it is silent: no siblings, and one cache."""
    siblings = cores_alike(cores, HYPERTHREADS, folders, str)
    return CpuLayout(_others(siblings), _others(cores_alike(cores, LARGEST_CACHE, folders)))


def _others(groups: Sequence[Sequence[int]]) -> Mapping[int, frozenset[int]]:
    return {core: frozenset(group) - {core} for group in groups for core in group}


def choose_cores(
    busy: Mapping[int, float], count: int, layout: CpuLayout, chance: random.Random
) -> tuple[int, ...]:
    """Return ``count`` cores, at least one, that others use least; ``chance`` decides a draw.

    ``busy``: by core, the part of its time that others use.
    """
    rounded = {core: round(part, 1) for core, part in busy.items()}
    order = chance.sample(list(busy), len(busy))
    firsts: dict[frozenset[int], int] = {}  # the best core of each cache
    for core in sorted(order, key=lambda core: _cost(core, (), rounded, layout)):
        firsts.setdefault(layout.near[core] | {core}, core)
    choices = [_choice_from(first, count, order, rounded, layout) for first in firsts.values()]
    return min(choices, key=lambda choice: choice_cost(choice, rounded, layout))


def choice_cost(cores: Sequence[int], busy: Mapping[int, float], layout: CpuLayout) -> float:
    """Cores that others have of these, and what these take from each other."""
    return sum(_cost(core, cores[:place], busy, layout) for place, core in enumerate(cores))


def _choice_from(
    first: int, count: int, order: Sequence[int], busy: Mapping[int, float], layout: CpuLayout
) -> tuple[int, ...]:
    chosen = [first]
    while len(chosen) < count:
        others = (core for core in order if core not in chosen)
        chosen.append(min(others, key=lambda core: _cost(core, chosen, busy, layout)))
    return tuple(chosen)


def _cost(core: int, chosen: Sequence[int], busy: Mapping[int, float], layout: CpuLayout) -> float:
    taken = sum(1.0 if core in chosen else busy[core] for core in layout.siblings[core])
    is_far = bool(chosen) and chosen[0] not in layout.near[core]
    return busy[core] + SIBLING * taken + FAR * is_far


def cores_paid_for(settings: Settings, allowance: CpuAllowance) -> int:
    """Number of cores that a server keeps to; 0: all, as it has no quota below them.

    A quota of 1.5 pays for two, whose threads use less than both. More threads that are set have
    their cores; where devices name cores or threads are not to be pinned, nothing is chosen.
    """
    names = parse_devices(settings.devices)
    if math.isinf(allowance.quota) or not settings.pin_threads or any(n.cores for n in names):
        return 0
    count = max(math.ceil(allowance.quota), settings.threads)
    return count if count < len(allowance.cores) else 0


class QuotaCores:
    """Keeps this process and its children on a few cores. Belongs to the event loop."""

    def __init__(self, cores: Sequence[int], count: int) -> None:
        """``cores``: those that the process may use; it keeps to ``count`` of them, 0: to all."""
        self._all = tuple(cores)
        self._count = count
        self._layout = cpu_layout(cores) if count else CpuLayout({}, {})
        self._chance = random.Random()
        self._ticks = _core_ticks(cores)
        self._own_ticks = sum(_family().values()) if count else 0
        self.cores: tuple[int, ...] = self._all
        """Those that it keeps to now."""

    async def run(self) -> None:
        if not self._count:
            return
        pause_s = FIRST_LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            await asyncio.to_thread(self.look)
            pause_s = LOOK_S

    def look(self) -> None:
        """Keep to the best cores by what was used since the last look."""
        if not self._count:
            return
        busy = self._used_by_others()
        best = choose_cores(busy, self._count, self._layout, self._chance)
        if len(self.cores) == self._count:
            now = choice_cost(self.cores, busy, self._layout)
            if now - choice_cost(best, busy, self._layout) < MARGIN * self._count:
                best = self.cores
        move_to(best)  # also those that stay: children may have begun during the last move
        if best != self.cores:
            self.cores = best
            log.info("keeps to cores that its quota pays for", extra={"cores": sorted(best)})

    def _used_by_others(self) -> dict[int, float]:
        """By core: the part of the time since the last look that others used."""
        before, self._ticks = self._ticks, _core_ticks(self._all)
        own_before, self._own_ticks = self._own_ticks, sum(_family().values())
        parts, here = dict[int, float](), 0
        for core, (busy, ticks) in self._ticks.items():
            busy, ticks = busy - before[core][0], ticks - before[core][1]
            parts[core] = busy / ticks if ticks > 0 else 0.0
            here += busy if core in self.cores else 0
        others = max(0.0, 1 - max(0, self._own_ticks - own_before) / here) if here else 1.0
        return {core: part * (others if core in self.cores else 1) for core, part in parts.items()}


def _core_ticks(cores: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Ticks of each core since the start of the machine, busy and in all; none: not known."""
    ticks = dict.fromkeys(cores, (0, 0))
    with suppress(OSError):  # another system
        for name, *counts in map(str.split, STATISTICS.read_text().splitlines()):
            core = int(name[3:]) if re.fullmatch(r"cpu\d+", name) else -1
            if core in ticks:
                numbers = [int(count) for count in counts[:_FIELDS]]
                idle = numbers[_IDLE] + numbers[_IO_WAIT]
                ticks[core] = sum(numbers) - idle, sum(numbers)
    return ticks


def move_to(cores: Sequence[int]) -> None:
    """Let all threads of this process and of its children run on these cores only.

    Threads and children that start meanwhile may have been made by one that was not moved yet, so
    it is done until none is left.
    """
    wanted = set(cores)
    for _ in range(_PASSES):
        moved = 0
        for process in _family():
            for thread in _numbers(PROCESSES / f"{process}/task"):
                with suppress(OSError):  # it has ended, or the container may not use a core now
                    if os.sched_getaffinity(thread) != wanted:
                        os.sched_setaffinity(thread, wanted)
                        moved += 1
        if not moved:
            break


def _family() -> Mapping[int, int]:
    """This process and all below it, and the ticks of CPU time of each and its ended children."""
    children: dict[int, list[int]] = {}
    ticks = {}
    for process in _numbers(PROCESSES):
        with suppress(OSError):  # it has ended
            fields = (PROCESSES / f"{process}/stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[_PARENT]), []).append(process)
            ticks[process] = sum(map(int, fields[_TIMES]))
    family, left = {}, [os.getpid()]
    while left:
        process = left.pop()
        family[process] = ticks.get(process, 0)
        left += children.get(process, ())
    return family


def _numbers(folder: Path) -> list[int]:
    """Numbers of the processes or threads in a folder of the kernel's."""
    with suppress(OSError):  # it has ended
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    return []
