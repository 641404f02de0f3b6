"""What each batch size of a model takes, and how fast its rows arrive: measured, never set.

A latency starts as the schedule's, and follows what batches really take. A size that was neither
scheduled nor seen is believed to be as cheap as the known ones allow, so that it is tried.
"""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN_S = 0.005
"""Latency of every size while nothing at all is known."""

SMOOTHING = 0.1
OUTLIER = 4.0  # one observation moves the belief by no more than if it were this many times it
SHORTEST_GAP_S = 1e-4
NOTICED = 0.05  # relative change after which decisions are made anew


class LatencyTable:
    """Expected seconds of a batch, by batch size."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sorted(sizes))
        self.revision = 0  # of the latencies, as far as decisions can tell
        self._known: dict[int, float] = {}
        self._seconds: dict[int, float] = {}  # what follows from ``_known``, as it is asked for
        self._told: dict[int, float] = {}  # as of ``revision``

    def expect(self, size: int, seconds: float) -> None:
        """Believe this from now on: a schedule was made, or another plan serves."""
        assert seconds > 0
        self._known[size] = seconds
        self._seconds.clear()
        self._notice(size)

    def observe(self, size: int, seconds: float) -> None:
        """A batch of this size took this long.

        If that is a surprise, half of it is put down to the device and not to the size: on a device
        that has become slower, sizes that have not run lately must not look fast beside the others.
        """
        if not seconds > 0:  # shorter than its clock tells: nothing to believe
            return
        self._seconds.clear()
        old = self._known.get(size)
        if old is None:
            self._known[size] = seconds
            self._notice(size)
            return
        surprise = SMOOTHING * (min(seconds / old, OUTLIER) - 1)
        for each in self._known:
            self._known[each] *= 1 + (surprise if each == size else surprise / 2)
            self._notice(each)

    def seconds(self, size: int) -> float:
        """Expected latency of a batch of ``size`` rows."""
        found = self._seconds.get(size)
        if found is None:
            found = self._seconds[size] = self._expected_s(size)
        return found

    def _expected_s(self, size: int) -> float:
        if (known := self._known.get(size)) is not None:
            return known
        smaller = [self._known[each] for each in self._known if each < size]
        if smaller:  # optimistic: no dearer than what is known
            return max(smaller)
        larger = min((each for each in self._known if each > size), default=None)
        if larger is None:
            return UNKNOWN_S
        return self._known[larger] * size / larger

    def size_for(self, rows: int) -> int:
        """The cheapest batch size that holds ``rows``, or the largest there is."""
        if rows >= self.sizes[-1]:
            return self.sizes[-1]
        return min([size for size in self.sizes if size >= rows], key=self.seconds)

    @property
    def seconds_per_row(self) -> float:
        """At the size that brings the most rows a second."""
        return min(self.seconds(size) / size for size in self.sizes)

    def clearing_s(self, rows: int) -> float:
        """Time to run ``rows`` waiting rows, one batch after the other."""
        if rows <= 0:
            return 0.0
        best = min(self.sizes, key=lambda size: self.seconds(size) / size)
        full, rest = divmod(rows, best)
        return full * self.seconds(best) + (self.seconds(self.size_for(rest)) if rest else 0.0)

    def _notice(self, size: int) -> None:
        told = self._told.get(size)
        if told is None or abs(self._known[size] - told) > NOTICED * told:
            self._told[size] = self._known[size]
            self.revision += 1


class ArrivalRate:
    """How far apart rows arrive, smoothed. A long silence counts as a gap, too."""

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._last: float | None = None

    def arrived(self, now: float, rows: int) -> None:
        """``rows`` rows came at ``now``."""
        if self._last is not None:
            gap = (now - self._last) / rows
            old = gap if self._gap_s is None else self._gap_s
            # Callers that wait for answers come in bursts: one pause says little about them.
            self._gap_s = old + SMOOTHING * (min(gap, max(OUTLIER * old, SHORTEST_GAP_S)) - old)
        self._last = now

    def gap_s(self, now: float) -> float | None:
        """Expected time to the next row; None while nothing is known."""
        if self._gap_s is None or self._last is None:
            return None
        return max(self._gap_s, (now - self._last) / 2)
