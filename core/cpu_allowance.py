"""CPUs that this process may use: cores by its affinity, and time by the quotas of its groups.

sched_getaffinity                                 ─> cores      64
cpu.max, or cpu.cfs_quota_us / cpu.cfs_period_us  ─> quota      4.5 ─> 4 threads, on any of 64 cores

Under a quota, the kernel stops all threads of a group for the rest of each period (100 ms) once
they have used it up, also by waiting in a loop.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from braid.core.control_groups import ROOT, control_groups


@dataclass(frozen=True, slots=True)
class CpuAllowance:
    """What this process may use, together with all others of its control group."""

    cores: tuple[int, ...]  # ascending numbers
    quota: float  # seconds of CPU time a second; infinite without a limit below the cores

    @property
    def threads(self) -> int:
        """Threads that can always run: one a core, or the quota rounded down; at least one.

        One more than the quota pays for would make all of them wait in each period.
        """
        return max(1, math.floor(min(self.quota, len(self.cores))))


def cpu_allowance(root: Path = ROOT) -> CpuAllowance:
    """Return what this process may use now; ``root`` is where the system's files are, for tests."""
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
