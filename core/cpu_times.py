"""Time of cores as the kernel counts it, in all and idle."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

STATISTICS = Path("/proc/stat")

_IDLE, _IO_WAIT = 3, 4
_FIELDS = 8  # those after it are parts of the first two


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks of a core since the start of the machine; none: not known."""

    ticks: int = 0
    idle: int = 0

    def since(self, before: CpuTimes) -> CpuTimes:
        return CpuTimes(self.ticks - before.ticks, self.idle - before.idle)

    @property
    def idle_part(self) -> float:
        """Part of the time that was idle, 0 to 1; 1 where nothing is known."""
        return self.idle / self.ticks if self.ticks > 0 else 1.0


def read_core_times(cores: Collection[int]) -> dict[int, CpuTimes]:
    try:
        lines = STATISTICS.read_text().splitlines()
    except OSError:  # another system
        lines = []
    times = {}
    for name, *counts in map(str.split, lines):
        if name.startswith("cpu"):
            numbers = [int(count) for count in counts[:_FIELDS]]
            times[name] = CpuTimes(sum(numbers), numbers[_IDLE] + numbers[_IO_WAIT])
    return {core: times.get(f"cpu{core}", CpuTimes()) for core in cores}
