"""Memory of what was prepared for shapes as they came, of all models of one device.

Bounded in bytes, whatever their number. The holder with the most gives up what it used least
recently, so a model that gets ever new shapes drops its own once it holds more than the others,
and never those of a model that holds less.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Protocol

PART = 8
"""Part of a device's memory for what is prepared for shapes as they come: one in so many."""

MEMORY_BYTES = 8 << 30
"""Memory of a device without a limit of its own, as far as that part is concerned."""

LEAST_BYTES = 64 << 10
"""Size of an executable whose memory is not known, or less."""


class Holder(Protocol):
    """Holds executables by keys of its own."""

    def drop(self, key: Any, /) -> None:
        """Release an executable; it is not counted any more."""


class ShapeMemory:
    """Bytes by holder and key. Belongs to one thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.is_preparing = False  # beside requests: one executable at a time
        self._kept: dict[Holder, OrderedDict[Hashable, int]] = {}

    @staticmethod
    def part_of(memory_bytes: int) -> ShapeMemory:
        """Return that of a device; 0: it has no limit."""
        return ShapeMemory((memory_bytes or MEMORY_BYTES) // PART)

    @property
    def held_bytes(self) -> int:
        return sum(map(self._held, self._kept))

    def _held(self, holder: Holder) -> int:
        return sum(self._kept[holder].values())

    def keep(self, holder: Holder, key: Hashable, size_bytes: int) -> None:
        """Count an executable, and have others dropped until all fit; this one always stays."""
        size_bytes = max(size_bytes, LEAST_BYTES)
        self._kept.setdefault(holder, OrderedDict())[key] = size_bytes
        while self.held_bytes > self.limit_bytes:
            largest = max(self._kept, key=self._held)
            oldest = next(iter(self._kept[largest]))
            if (largest, oldest) == (holder, key):
                break
            self.forget(largest, oldest)
            largest.drop(oldest)

    def used(self, holder: Holder, key: Hashable) -> None:
        if key in self._kept.get(holder, ()):
            self._kept[holder].move_to_end(key)

    def forget(self, holder: Holder, key: Hashable) -> None:
        """Count an executable no more; does nothing if it is not counted."""
        of_holder = self._kept.get(holder, OrderedDict())
        of_holder.pop(key, None)
        if not of_holder:
            self.forget_all(holder)

    def forget_all(self, holder: Holder) -> None:
        self._kept.pop(holder, None)
