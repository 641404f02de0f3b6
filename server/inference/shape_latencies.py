"""Expected latencies of batches in shapes that no schedule was made for.

    batch of b rows ──elements──> ShapeTimes, of all shapes of a model ──expects──> ShapeLatencies
           └──────────────────────────observed──────────────────────────────────────┘

A session for any shape runs any number of rows, so its batches are as large as their requests. How
long those of a shape take that has not run is told by others of about as many elements: three rows
of length 20 are expected to take what one of length 60 does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from braid.server.inference.latencies import (
    FORGOTTEN_AFTER,
    OF_ALL_SHAPES,
    LatencyTable,
    Way,
    surprise_of,
)

STEPS = 4
"""Numbers of elements that are told apart, between a power of two and the next."""

BESIDE = 0.95
"""First guess: runs side by side together take this part of what they take one by one. It is less
than one so that they are tried."""

EVERY_SIZE = 8
"""Up to so many rows each number is weighed; of more, two between powers of two."""


class ShapeTimes:
    """What runs of one model take by their elements, in all shapes without schedules."""

    def __init__(self) -> None:
        self.beside = 1
        """Runs that a session for any shape goes on with at once; 1: one by one."""
        self.is_any_size = False
        """Whether batches may have any number of rows."""
        self._seconds: dict[int, float] = {}  # by ``_step``, of runs one by one
        self._keys: list[int] = []  # of it, ascending
        self._slower: float | None = None  # a run beside others over one alone, as observed
        self._unseen = 0  # runs since one was beside others

    @property
    def slower(self) -> float:
        """Expected ratio of the seconds of a run beside others to those of one alone."""
        return BESIDE * self.beside if self._slower is None else self._slower

    def expected_s(self, elements: int) -> float | None:
        """Return the expected seconds of a run alone; None: nothing is known."""
        step, keys = _step(elements), self._keys
        if not keys or step in self._seconds:
            return self._seconds.get(step)
        at = bisect_left(keys, step)
        if at in (0, len(keys)):
            near = keys[min(at, len(keys) - 1)]
            return self._seconds[near] * elements / _elements(near)
        low, high = _elements(keys[at - 1]), _elements(keys[at])
        low_s, high_s = self._seconds[keys[at - 1]], self._seconds[keys[at]]
        return low_s + (high_s - low_s) * (elements - low) / (high - low)

    def observe(self, elements: int, seconds: float, beside: int) -> None:
        """Learn from a run; half of a surprise beside others is put down to the device."""
        expected_s = self.expected_s(elements)
        if beside == 1:
            self._unseen += 1
            if self._unseen >= FORGOTTEN_AFTER:
                self._slower = None
            step = _step(elements)
            old = self._seconds.get(step)
            if old is None:
                self._keys.insert(bisect_left(self._keys, step), step)
                self._seconds[step] = seconds
            else:
                self._seconds[step] = old * (1 + surprise_of(seconds, old, OF_ALL_SHAPES))
        elif expected_s is not None:
            self._unseen = 0
            slower = self.slower
            surprise = surprise_of(seconds, slower * expected_s, OF_ALL_SHAPES)
            self._slower = slower * (1 + surprise / 2)
            for step in self._keys:
                self._seconds[step] *= 1 + surprise / 2


class ShapeLatencies(LatencyTable):
    """Expected seconds of batches in one shape without schedules, or in near ones."""

    def __init__(self, sizes: Sequence[int], times: ShapeTimes, elements: int) -> None:
        """``sizes``: of scheduled batches. ``elements``: of one row."""
        super().__init__(sizes)
        self._times = times
        self._elements = elements
        self.adopt()

    def adopt(self) -> None:
        """Follow what the session of the model can do by now."""
        if self._times.is_any_size:
            self.sizes = sizes_up_to(self.sizes[-1])
        count = self._times.beside
        self.beside = tuple(Way(size, count) for size in self.sizes) if count > 1 else ()
        self._revise()

    def add(self, size: int) -> None:
        super().add(size)
        self.adopt()

    def way_for(self, rows: int, beside: int) -> Way:
        if not self._times.is_any_size:
            return super().way_for(rows, beside)
        return Way(rows, beside if self.beside else 1)

    def size_for(self, rows: int) -> int:
        if self._times.is_any_size:
            return min(rows, self.sizes[-1])
        return super().size_for(rows)

    def observe(self, size: int, seconds: float, beside: int = 1) -> None:
        if seconds > 0:
            self._times.observe(size * self._elements, seconds, beside)
        if size in self.sizes:
            super().observe(size, seconds, beside)

    def seconds(self, size: int, beside: int = 1) -> float:
        if beside == 1:
            return super().seconds(size)
        return self._by_way.get(Way(size, beside)) or self._times.slower * self.seconds(size)

    def _expected_s(self, size: int) -> float:
        if Way(size) not in self._by_way and self._times.is_any_size:
            expected_s = self._times.expected_s(size * self._elements)
            if expected_s is not None:
                return expected_s
        return super()._expected_s(size)

    def _surely_s(self, way: Way) -> float:
        return self.seconds(*way) if self._times.is_any_size else super()._surely_s(way)


def sizes_up_to(most: int) -> tuple[int, ...]:
    """Return the numbers of rows that are weighed, ascending: 1 to 8, 12, 16, 24, 32, ..., most."""
    sizes, size = set(range(1, min(most, EVERY_SIZE) + 1)), EVERY_SIZE
    while size < most:
        sizes |= {n for n in (size, size * 3 // 2) if n <= most}
        size *= 2
    return tuple(sorted({*sizes, most}))


def _step(elements: int) -> int:
    """Return the number of the step that ``elements``, one at least, falls into."""
    power = max(1, elements).bit_length() - 1
    return STEPS * power + (STEPS * elements >> power) - STEPS


def _elements(step: int) -> int:
    """Return about how many elements the runs of a step have."""
    power, part = divmod(step, STEPS)
    return max(1, ((2 * (STEPS + part) + 1) << power) // (2 * STEPS))
