"""State of a device that its key does not tell: which of its lanes' cores are near one another.

A virtual machine's cores are moved by its host, and what passes data or barriers between threads
then takes up to twice as long. A machine of several chiplets or sockets has both distances at once.
"""

from collections.abc import Collection
from dataclasses import dataclass

NEAR, FAR = "near", "far"


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Distances between the cores of a device's lanes at one moment; empty: not known."""

    groups: tuple[tuple[int, ...], ...] = ()  # lanes that are near one another
    distance_ns: tuple[tuple[float, ...], ...] = ()
    """Round trip of a cache line, [lane, lane]; 0 from a lane to itself."""

    def __post_init__(self) -> None:
        lanes = sorted(lane for group in self.groups for lane in group)
        if lanes != list(range(len(lanes))):
            raise ValueError(f"each lane belongs to one group: {self.groups}")
        if any(len(row) != len(self.distance_ns) for row in self.distance_ns):
            raise ValueError("distances are not square")

    @property
    def name(self) -> str:
        """``near``: all lanes are; ``far``: no two are; else ``0-3/4-7``; empty: not known."""
        if len(self.groups) <= 1:
            return NEAR if self.groups else ""
        if all(len(group) == 1 for group in self.groups):
            return FAR
        return "/".join(map(ranges_text, self.groups))

    @property
    def least_ns(self) -> float | None:
        """Round trip between the two lanes that are nearest; None: fewer than two are known."""
        return min(self._between_lanes(), default=None)

    @property
    def most_ns(self) -> float | None:
        """As ``least_ns``, of the two that are farthest from each other."""
        return max(self._between_lanes(), default=None)

    def _between_lanes(self) -> list[float]:
        return [ns for lane, row in enumerate(self.distance_ns) for ns in row[:lane]]

    def __str__(self) -> str:
        """``far (370 ns)``, ``0-3/4-7 (48 to 210 ns)``."""
        if self.least_ns is None or self.most_ns is None:
            return self.name or "not known"
        least, most = f"{self.least_ns:.0f}", f"{self.most_ns:.0f}"
        return f"{self.name} ({least if least == most else f'{least} to {most}'} ns)"


UNKNOWN = DeviceState()


def ranges_text(numbers: Collection[int], between: str = ",") -> str:
    """``0-3,8``: lanes or cores."""
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    ends = sorted(number for number in numbers if number + 1 not in numbers)
    runs = zip(starts, ends, strict=True)
    return between.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
