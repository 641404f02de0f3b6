"""Time of cores as the kernel counts it: idle, at work, and taken by the host of a virtual machine.

read ──> CpuTimes at one moment, and at another ──since──> parts that were idle and taken
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

STATISTICS = Path("/proc/stat")

_IDLE, _IO_WAIT, _STEAL = 3, 4, 7
_FIELDS = 8  # those after it are parts of the first two
_ALL_CORES = "cpu"


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks since the start of the machine, of some cores together; none: not known."""

    ticks: int = 0
    idle: int = 0
    stolen: int = 0  # the host gave the core to another machine

    def __add__(self, other: CpuTimes) -> CpuTimes:
        return CpuTimes(
            self.ticks + other.ticks, self.idle + other.idle, self.stolen + other.stolen
        )

    def since(self, before: CpuTimes) -> CpuTimes:
        return CpuTimes(
            self.ticks - before.ticks, self.idle - before.idle, self.stolen - before.stolen
        )

    @property
    def idle_part(self) -> float:
        """Part of the time that was idle, 0 to 1; 1 where nothing is known."""
        return self.idle / self.ticks if self.ticks > 0 else 1.0

    @property
    def busy_part(self) -> float:
        """Part of the time in which some process ran, 0 to 1; 0 where nothing is known."""
        return 1.0 - self.idle_part - self.stolen_part

    @property
    def stolen_part(self) -> float:
        """Part of the time that the host took, 0 to 1; 0 where nothing is known."""
        return self.stolen / self.ticks if self.ticks > 0 else 0.0


def read_cpu_times(cores: Collection[int] = ()) -> CpuTimes:
    """Return the times of some cores together; without ``cores``, of all."""
    lines = _read_lines()
    names = [f"{_ALL_CORES}{core}" for core in cores] or [_ALL_CORES]
    return sum((lines[name] for name in names if name in lines), CpuTimes())


def read_core_times(cores: Collection[int]) -> dict[int, CpuTimes]:
    """Return the times of each core."""
    lines = _read_lines()
    return {core: lines.get(f"{_ALL_CORES}{core}", CpuTimes()) for core in cores}


def _read_lines() -> dict[str, CpuTimes]:
    """Times by the name of their line: ``cpu`` of all cores, ``cpu7`` of one."""
    try:
        lines = STATISTICS.read_text().splitlines()
    except OSError:  # another system
        return {}
    times = {}
    for name, *counts in map(str.split, lines):
        if name.startswith(_ALL_CORES):
            numbers = [int(count) for count in counts[:_FIELDS]]
            times[name] = CpuTimes(
                sum(numbers), numbers[_IDLE] + numbers[_IO_WAIT], numbers[_STEAL]
            )
    return times
