"""Expected latencies of batches in shapes that no schedule was made for.

A session for any shape runs any number of rows, so its batches are as large as their requests. How
long those of a shape take that has not run is told by others of about as many elements: three rows
of length 20 are expected to take what one of length 60 does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from braid.core.curve import Curve
from braid.server.inference.latencies import (
    FORGOTTEN_AFTER,
    OF_ALL_SHAPES,
    LatencyTable,
    Way,
    surprise_of,
)

FINE = 32
"""Numbers below are told apart; of larger ones, 16 between a power of two and the next."""

REDRAWN = 32
"""Runs after which what was learned counts, unless they are of a new number of elements."""

BESIDE = 0.9
"""First guess: runs side by side together take this part of what they take one by one. It is less
than ``WORTH`` so that they are tried."""

WORTH = 0.95
"""Part of what they take one by one that runs side by side must stay below."""

MOST_UNSEEN = 32 * FORGOTTEN_AFTER
"""Runs one by one after which what did not run among them is tried again, at most: a number of
elements, whose first run may have been a slow one, and runs side by side that were not worth it,
for which it begins with ``FORGOTTEN_AFTER`` and doubles."""

EVERY_SIZE = 8
"""Up to so many rows each number is weighed; of more, two between powers of two."""


def bin_of(number: int) -> int:
    """Return the greatest number that is counted together with ``number``."""
    step = max(1, (1 << number.bit_length()) // FINE)
    return -(-number // step) * step


KEPT = 1 - 1 / 32
"""Part of what requests took so far that counts beside the next one."""


class Costs(NamedTuple):
    """Seconds of the whole device that a request takes."""

    whole_s: float  # on all threads
    beside_s: float  # beside others, on a part of them


@dataclass(slots=True)
class _Trial:
    """What runs side by side were seen to take."""

    slower: float | None = None  # a run beside others over one alone; None: to be tried
    whole_s: float = 0.0  # of the requests of late, each in its best way on all threads ...
    beside_s: float = 0.0  # ... and in its best way side by side
    _unseen: int = 0  # runs since one was beside others ...
    _forgotten_after: int = FORGOTTEN_AFTER  # ... and how many there may be

    def is_seen(self, slower: float) -> None:
        self.slower, self._unseen = slower, 0

    def is_unseen(self) -> None:
        self._unseen += 1
        if self.slower is not None and self._unseen >= self._forgotten_after:
            self.slower, self.whole_s, self.beside_s = None, 0.0, 0.0
            self._forgotten_after = min(2 * self._forgotten_after, MOST_UNSEEN)


class _Runs(NamedTuple):
    """What runs one by one of about as many elements take."""

    elements: float
    seconds: float
    latest: int  # its number among the runs of the model


class ShapeTimes:
    """What runs of one model take by their elements, in all shapes without schedules."""

    def __init__(self) -> None:
        self.beside = 1
        """Runs that a session for any shape goes on with at once; 1: one by one."""
        self.is_any_size = False
        """Whether batches may have any number of rows."""
        self._runs: dict[int, _Runs] = {}  # by bin
        self._count = 0  # of runs one by one
        self._curve, self._drawn = Curve({}), 0  # as of run ``_drawn``
        self._trial = _Trial()
        self._beside_s = 0.0  # of a run beside others

    @property
    def slower(self) -> float:
        """Expected ratio of the seconds of a run beside others to those of one alone."""
        slower = self._trial.slower
        return BESIDE * self.beside if slower is None else slower

    @property
    def goes_beside(self) -> bool | None:
        """Whether runs for which others wait run side by side; if not, one by one.

        It is one of both for all, and for plans of schedules, too. A run on all threads waits until
        all parts of the device are free, and the first of them idles meanwhile. None: no session
        goes on with several runs.
        """
        if self.beside == 1:
            return None
        trial = self._trial
        if trial.whole_s:
            return trial.beside_s < WORTH * trial.whole_s
        return self.slower < WORTH * self.beside

    @property
    def idle_s(self) -> float:
        """Expected seconds of the device that a run on all threads waits among those beside."""
        return self._beside_s * (self.beside - 1) / (2 * self.beside)

    def costs_s(self, elements: int) -> Costs:
        """Return what a request takes in the session, infinite while nothing is known."""
        alone_s = self.expected_s(elements)
        if alone_s is None:
            return Costs(inf, inf)
        return Costs(alone_s, self.slower * alone_s / self.beside)

    def weigh(self, whole_s: float, beside_s: float) -> None:
        """Learn what a request of a crowd takes of the device, in its best way of each kind."""
        if whole_s < inf and beside_s < inf:
            trial = self._trial
            trial.whole_s = KEPT * trial.whole_s + whole_s
            trial.beside_s = KEPT * trial.beside_s + beside_s

    def expected_s(self, elements: int) -> float | None:
        return self._curve.at(elements)

    def compared_s(self, elements: int) -> float | None:
        """As ``expected_s``, once runs of two numbers of elements were seen."""
        return self.expected_s(elements) if len(self._runs) > 1 else None

    def observe(self, elements: int, seconds: float, beside: int = 1) -> None:
        if not seconds > 0:  # shorter than its clock tells
            return
        if beside > 1:
            self._observe_beside(elements, seconds)
            return
        self._trial.is_unseen()
        self._count += 1
        at = bin_of(elements)
        is_new = at not in self._runs
        place, old_s, _ = self._runs.get(at, (float(elements), seconds, 0))
        place += OF_ALL_SHAPES * (elements - place)
        latest_s = old_s * (1 + surprise_of(seconds, old_s, OF_ALL_SHAPES))
        self._runs[at] = _Runs(place, latest_s, self._count)
        if is_new or self._count - self._drawn >= REDRAWN:
            self._draw()

    def _draw(self) -> None:
        self._drawn = self._count
        late = {at: r for at, r in self._runs.items() if self._count - r.latest < MOST_UNSEEN}
        self._runs = late
        self._curve = Curve({run.elements: run.seconds for run in late.values()}, rises=True)

    def _observe_beside(self, elements: int, seconds: float) -> None:
        self._beside_s += OF_ALL_SHAPES * (seconds - self._beside_s)
        expected_s = self.expected_s(elements)
        if expected_s is not None:
            slower = self.slower
            surprise = surprise_of(seconds, slower * expected_s, OF_ALL_SHAPES)
            self._trial.is_seen(slower * (1 + surprise))


class ShapeLatencies(LatencyTable):
    """Expected seconds of batches in one shape without schedules, or in near ones."""

    def __init__(self, sizes: Sequence[int], times: ShapeTimes, elements: int) -> None:
        """``sizes``: of scheduled batches. ``elements``: of one row."""
        super().__init__(sizes, times)
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
        if size in self.sizes:
            super().observe(size, seconds, beside)

    def seconds(self, size: int, beside: int = 1) -> float:
        if beside == 1:
            return super().seconds(size)
        return self._by_way.get(Way(size, beside)) or self._times.slower * self.seconds(size)

    def _expected_s(self, size: int) -> float:
        if self._times.is_any_size:
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
