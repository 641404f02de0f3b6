"""Latency of each batch size, rate of arriving rows, and the size that ends the waiting soonest.

Latencies are measured, never set: each starts as the schedule's, and follows what batches really
take. A size that was neither scheduled nor seen is assumed to be as cheap as the known ones allow,
so that it is tried.

Every row that waits is delayed by each batch that runs before its own ends. So n rows, served
one batch after the other, wait together for at least

    total(n) = min over sizes b of  latency(b) * n + total(n - min(b, n))

Where the device runs k batches side by side on parts of its threads, they count as one batch of k
times the rows, which takes as long as each of them does beside the others.

The first batch of the best order is what runs. Rows that will arrive while these are served count
as well: with utilisation u, a busy period that begins with n rows serves n / (1 - u). So the
choice moves from the lowest latency, when there is little to do, to the highest throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

UNKNOWN_S = 0.005
"""Latency of every size while nothing at all is known."""

SMOOTHING = 0.1
OUTLIER = 4.0  # one observation moves the belief by no more than if it were this many times it
SHORTEST_GAP_S = 1e-4
NOTICED = 0.05  # relative change after which decisions are made anew

HORIZON_ROWS = 512
"""Rows looked ahead. Beyond, throughput is all that counts."""

MAX_UTILISATION = 0.95

WORTH = 0.95
"""Waiting must promise at least this much of the total without it: estimates are noisy."""


class Way(NamedTuple):
    """How batches run: their size, and how many the device runs side by side."""

    size: int
    beside: int = 1  # 1: one after the other, each on all threads

    @property
    def rows(self) -> int:
        """Rows that run at once."""
        return self.size * self.beside


class LatencyTable:
    """Expected seconds of a batch, by batch size and by how many run side by side."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sorted(sizes))
        self.revision = 0  # of the latencies, as far as decisions can tell
        self._known: dict[Way, float] = {}
        self._seconds: dict[int, float] = {}  # what follows from ``_known``, as it is asked for
        self._told: dict[Way, float] = {}  # as of ``revision``
        self._sizes_for: dict[int, int] = {}  # by rows, as of ``revision``
        self.beside: tuple[Way, ...] = ()
        """Ways of running batches side by side, smallest first."""

    @property
    def ways(self) -> tuple[Way, ...]:
        """All ways in which batches can run."""
        return (*map(Way, self.sizes), *self.beside)

    def expect(self, size: int, seconds: float, beside: int = 1) -> None:
        """Set the latency of a size: a schedule was made, or another plan serves."""
        assert seconds > 0
        way = Way(size, beside)
        self._known[way] = seconds
        if beside > 1 and way not in self.beside:
            self.beside = tuple(sorted((*self.beside, way)))
        self._seconds.clear()
        self._notice(way)

    def forget_beside(self, size: int) -> None:
        """Run batches of a size one after the other only."""
        for way in [way for way in self.beside if way.size == size]:
            del self._known[way]
            self.revision += 1
        self.beside = tuple(way for way in self.beside if way.size != size)

    def observe(self, size: int, seconds: float, beside: int = 1) -> None:
        """Learn from a batch of ``size`` rows that took ``seconds``.

        If that is a surprise, half of it is put down to the device and not to the size: on a device
        that has become slower, sizes that have not run lately must not look fast beside the others.
        """
        if not seconds > 0:  # shorter than its clock tells: nothing to believe
            return
        self._seconds.clear()
        way = Way(size, beside)
        old = self._known.get(way)
        if old is None:
            if beside == 1:
                self._known[way] = seconds
                self._notice(way)
            return
        surprise = SMOOTHING * (min(seconds / old, OUTLIER) - 1)
        for each in self._known:
            self._known[each] *= 1 + (surprise if each == way else surprise / 2)
            self._notice(each)

    def seconds(self, size: int, beside: int = 1) -> float:
        """Return the expected seconds of a batch of ``size`` rows, of ``beside`` at once."""
        if beside > 1:
            return self._known.get(Way(size, beside)) or self.seconds(size)
        found = self._seconds.get(size)
        if found is None:
            found = self._seconds[size] = self._expected_s(size)
        return found

    def _expected_s(self, size: int) -> float:
        alone = {way.size: known for way, known in self._known.items() if way.beside == 1}
        if (known := alone.get(size)) is not None:
            return known
        smaller = [alone[each] for each in alone if each < size]
        if smaller:  # optimistic: no dearer than what is known
            return max(smaller)
        larger = min((each for each in alone if each > size), default=None)
        if larger is None:
            return UNKNOWN_S
        return alone[larger] * size / larger

    def size_for(self, rows: int) -> int:
        """Return the cheapest batch size that holds ``rows``, or the largest size."""
        found = self._sizes_for.get(rows)
        if found is None:
            if rows >= self.sizes[-1]:
                return self.sizes[-1]
            found = min([size for size in self.sizes if size >= rows], key=self.seconds)
            self._sizes_for[rows] = found
        return found

    def way_for(self, rows: int, beside: int) -> Way:
        """Return the least way of ``beside`` batches that hold ``rows`` each, else one batch."""
        fitting = [way for way in self.beside if way.beside == beside and way.size >= rows]
        return min(fitting, default=Way(self.size_for(rows)))

    @property
    def seconds_per_row(self) -> float:
        """Seconds per row in the way that computes the most rows a second."""
        return min(self.seconds(*way) / way.rows for way in self.ways)

    def clearing_s(self, rows: int) -> float:
        """Return the seconds to run ``rows`` waiting rows, one batch after the other."""
        if rows <= 0:
            return 0.0
        best = min(self.ways, key=lambda way: self.seconds(*way) / way.rows)
        full, rest = divmod(rows, best.rows)
        return full * self.seconds(*best) + (self.seconds(self.size_for(rest)) if rest else 0.0)

    def _notice(self, way: Way) -> None:
        told = self._told.get(way)
        if told is None or abs(self._known[way] - told) > NOTICED * told:
            self._told[way] = self._known[way]
            self.revision += 1
            self._sizes_for.clear()


class ArrivalRate:
    """Smoothed seconds between arriving rows. A long silence counts as a gap, too."""

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._last: float | None = None

    def arrived(self, now: float, rows: int) -> None:
        """Count ``rows`` rows that arrived at ``now``, in seconds."""
        if self._last is not None:
            gap = (now - self._last) / rows
            old = gap if self._gap_s is None else self._gap_s
            # Callers that wait for answers come in bursts: one pause says little about them.
            self._gap_s = old + SMOOTHING * (min(gap, max(OUTLIER * old, SHORTEST_GAP_S)) - old)
        self._last = now

    def gap_s(self, now: float) -> float | None:
        """Return the expected seconds to the next row; None while nothing is known."""
        if self._gap_s is None or self._last is None:
            return None
        return max(self._gap_s, (now - self._last) / 2)


class CompletionPlan:
    """Choices of how to run for one latency table; computed anew when the table has changed."""

    def __init__(self, table: LatencyTable) -> None:
        self._table = table
        self._revision = -1
        self._latency: dict[Way, float] = {}
        self._total: list[float] = [0.0]

    def total_s(self, rows: int) -> float:
        """Return the least sum of completion times, in seconds; ``rows`` at most HORIZON_ROWS."""
        self._refresh()
        total, latency = self._total, self._latency
        for n in range(len(total), rows + 1):
            total.append(min(s * n + total[max(0, n - w.rows)] for w, s in latency.items()))
        return total[rows]

    def best_way(self, rows: int, gap_s: float | None = None) -> Way:
        """Return the batch size to run now, and how many batches of it side by side.

        Args:
            rows: waiting, at least 1.
            gap_s: expected time between arriving rows; None if unknown.
        """
        self._refresh()
        busy = self._busy_period(rows, gap_s)
        if busy > HORIZON_ROWS:
            return min(self._latency, key=lambda w: self._latency[w] / min(w.rows, rows))
        self.total_s(busy)
        return min(
            self._latency,
            key=lambda w: self._latency[w] * busy + self._total[busy - min(w.rows, rows)],
        )

    def waiting_pays(self, rows: int, gap_s: float | None, longest_s: float) -> bool:
        """Return whether, the device idle, rows that come within ``longest_s`` are worth a wait.

        Compares the expected time that the ``rows`` waiting and the next k rows spend: all of
        them in one batch once the k have come, or the waiting ones now and the k afterwards.
        """
        if gap_s is None or longest_s <= 0:
            return False
        self._refresh()
        now_s = self._latency[Way(self._table.size_for(rows))]
        for size in self._table.sizes:
            more = size - rows
            if more <= 0:
                continue
            last_s = more * gap_s
            if last_s > longest_s:
                break
            together = (
                rows * last_s + gap_s * more * (more - 1) / 2 + size * self._latency[Way(size)]
            )
            if together < WORTH * self._one_after_the_other(rows, more, gap_s, now_s):
                return True
        return False

    def _one_after_the_other(self, rows: int, more: int, gap_s: float, now_s: float) -> float:
        """Return the seconds spent if the waiting rows run now; later rows wait only for those."""
        during = min(more, int(now_s / gap_s)) if gap_s > 0 else more
        waited = during * now_s - gap_s * during * (during + 1) / 2
        after = self.total_s(min(during, HORIZON_ROWS))
        alone = (more - during) * self._latency[Way(self._table.size_for(1))]
        return rows * now_s + waited + after + alone

    def _busy_period(self, rows: int, gap_s: float | None) -> int:
        if not gap_s:
            return rows
        utilisation = min(MAX_UTILISATION, self._table.seconds_per_row / gap_s)
        return max(rows, round(rows / (1 - utilisation)))

    def _refresh(self) -> None:
        if self._revision != self._table.revision or not self._latency:
            self._revision = self._table.revision
            self._latency = {way: self._table.seconds(*way) for way in self._table.ways}
            self._total = [0.0]
