"""CPUs and memory that this process may use: the machine's, or its control groups' if that is less.

    sched_getaffinity                                 ─> cores      64
    cpu.max, or cpu.cfs_quota_us / cpu.cfs_period_us  ─> quota      4.5 ─> 4 threads, on any of 64

Under a quota, the kernel stops all threads of a group for the rest of each period (100 ms) once
they have used it up, also by waiting in a loop.

Groups are of version 1 or 2 (cgroups(7)). In a container the outermost group in sight is often the
container's own, mounted as if it were the root; without a name space of its own for groups, only a
part of the hierarchy is mounted.
"""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def control_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders of the groups that limit this process by ``controller``, ``cpu`` or ``memory``.

    ``root``: where the system's files are, for tests. Returns the process's own group first, then
    those around it; of both versions, if both are mounted.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    paths = {}  # controller, or "" for version 2 -> path of the group in its hierarchy
    for line in groups:
        controllers, _, path = line.partition(":")[2].partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    folders: list[Path] = []
    for line in mounts:
        place, _, kind = line.partition(" - ")
        file_system, _, options = kind.partition(" ")
        is_second = file_system == "cgroup2"
        is_first = file_system == "cgroup" and controller in re.split("[ ,]", options)
        if not (is_first or is_second):
            continue
        group = paths.get("" if is_second else controller)
        if group is not None:
            shown, mounted_at = map(_unescaped, place.split(" ")[3:5])
            folders += _upwards(root / mounted_at.lstrip("/"), group, shown)
    return folders


def _upwards(mounted_at: Path, group: str, shown: str) -> list[Path]:
    """Folders from a group to the top of its mount, which shows the hierarchy from ``shown`` on."""
    try:
        below = PurePosixPath(group).relative_to(shown)
    except ValueError:  # the group lies outside of what is mounted
        below = PurePosixPath()
    if ".." in below.parts:
        below = PurePosixPath()
    return [mounted_at / part for part in (below, *below.parents)]


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


@dataclass(frozen=True, slots=True)
class CpuAllowance:
    """What this process may use, together with all others of its control group."""

    cores: tuple[int, ...]  # ascending numbers
    quota: float  # seconds of CPU time a second; infinite without a limit below the cores

    @property
    def cpus(self) -> float:
        return min(self.quota, len(self.cores))

    @property
    def threads(self) -> int:
        """Threads that can always run: one a core, or the quota rounded down; at least one.

        One more than the quota pays for would make all of them wait in each period.
        """
        return max(1, math.floor(self.cpus))


def cpu_allowance(root: Path = ROOT) -> CpuAllowance:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    quota = min(map(_quota, control_groups("cpu", root)), default=math.inf)
    return CpuAllowance(cores, quota if quota < len(cores) else math.inf)


def _quota(group: Path) -> float:
    """CPUs that a group's quota gives it; infinite without one."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        except OSError:
            return math.inf
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return share if share > 0 else math.inf  # -1 microseconds: no limit


@dataclass(frozen=True, slots=True)
class Throttling:
    """Periods of a quota of CPU time, as its control group counts them."""

    periods: int = 0  # in which the group had something to run
    throttled: int = 0  # of these: in which it used up its quota and was stopped
    seconds: float = 0.0  # that it was stopped, over all cores


def throttling(root: Path = ROOT) -> Throttling:
    """How often the kernel stopped this process for its quota, in the group stopped most."""
    counts = map(_throttling, control_groups("cpu", root))
    return max(counts, key=lambda group: group.throttled, default=Throttling())


def _throttling(group: Path) -> Throttling:
    try:
        lines = (group / "cpu.stat").read_text().splitlines()
        counts = {name: int(count) for name, count in map(str.split, lines)}
    except (OSError, ValueError):
        return Throttling()
    stopped_us = counts.get("throttled_usec", counts.get("throttled_time", 0) / 1000)
    return Throttling(
        counts.get("nr_periods", 0), counts.get("nr_throttled", 0), float(stopped_us) / 1e6
    )


def usable_memory_bytes(root: Path = ROOT) -> int:
    """Bytes of memory of this machine, or of the smallest control group that this process is in."""
    usable = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in control_groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                usable = min(usable, int((group / name).read_text()))
            except (OSError, ValueError):  # of the other version, or "max"
                continue
    return usable
