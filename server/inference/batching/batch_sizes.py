"""Rate of arriving rows, and the batch size that ends the waiting soonest.

Every row that waits is delayed by each batch that runs before its own ends. So n rows, served
one batch after the other, wait together for at least

    total(n) = min over sizes b of  latency(b) * n + total(n - min(b, n))

Where the device runs k batches side by side on parts of its threads, they count as one batch of k
times the rows, which takes as long as each of them does beside the others. While only some of the
parts are busy, a batch on a part can begin before one on all threads: then each part takes the next
batch as soon as it is free, and the sum of the ends decides.

Rows of one request end together, with the last of them. So where k rows wait for each request, on
average, every row waits until the k-th, and for a request that waits alone the total is what its
rows take in the cheapest batches, cut, padded or both (``braid.core.cover``), each with what it
takes beside its computing.

The first batch of the best order is what runs. Rows that will arrive while these are served count
as well: with utilisation u, a busy period that begins with n rows serves n / (1 - u). So the
choice moves from the lowest latency, when there is little to do, to the highest throughput.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace

from braid.core.cover import HORIZON_ROWS
from braid.server.inference.latencies import LatencyTable, Way

SMOOTHING = 0.1
OUTLIER = 4.0  # one gap moves the belief by no more than if it were this many times it
SHORTEST_GAP_S = 1e-4

MAX_TOTALS = 16
"""Numbers of rows of a request whose totals are kept."""

HORIZON_ON_PARTS = 32
"""Rows looked ahead where parts of the device are free at different times."""

MAX_UTILISATION = 0.95

WORTH = 0.95
"""Waiting must promise at least this much of the total without it: estimates are noisy."""


class ArrivalRate:
    """Smoothed seconds between arriving rows. A long silence counts as a gap, too."""

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._last: float | None = None

    def arrived(self, now: float, rows: int) -> None:
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
        self._is_all_beside: bool | None = None
        self._busy_ways: dict[Way, float] = {}  # the same, of those that may run while others wait
        self._totals: dict[int, list[float]] = {}  # by the rows of a request

    def total_s(self, rows: int, request_rows: int = 1) -> float:
        """Return the least sum of completion times, in seconds; ``rows`` at most HORIZON_ROWS.

        A request has ``request_rows`` rows.
        """
        self._refresh()
        if request_rows not in self._totals and len(self._totals) >= MAX_TOTALS:
            self._totals.clear()
        total = self._totals.setdefault(request_rows, [0.0])
        for n in range(len(total), rows + 1):
            waiting, ways = _whole(n, request_rows), self._busy_ways.items()
            total.append(min(s * waiting + total[max(0, n - w.rows)] for w, s in ways))
        return total[rows]

    def best_way(
        self,
        rows: int,
        gap_s: float | None = None,
        request_rows: int = 1,
        *,
        is_alone: bool = False,
        most: int | None = None,
        free_s: Sequence[float] = (),
    ) -> Way:
        """Return the batch size to run now for ``rows``, at least 1, and how many side by side.

        Args:
            gap_s: expected time between arriving rows; None if unknown.
            request_rows: rows of a request, on average.
            is_alone: all rows are of one request.
            most: rows that can share a batch; the others, which run beside it, count as alike.
            free_s: seconds until each equal part is free, ascending; none: all of them are.
        """
        are_apart = bool(free_s) and free_s[0] != free_s[-1]
        if is_alone and not are_apart:
            return Way(self._table.first_size(rows))
        self._refresh()
        busy, ways = self._busy_period(rows, gap_s), self._ways(most)
        near = min(busy, max(rows, HORIZON_ON_PARTS))
        if most is not None:  # each lane has totals of its own
            busy = near
        if is_alone:
            best = Way(self._table.first_size(rows))
        elif busy > HORIZON_ROWS:
            best = min(ways, key=lambda w: self._latency[w] / min(w.rows, rows))
        else:
            best = min(ways, key=lambda w: self._total_with_s(w, rows, busy, request_rows))
        if not are_apart:
            return best
        near = min(near, HORIZON_ROWS)
        best_s = free_s[-1] * _whole(near, request_rows)
        best_s += self._total_with_s(best, rows, near, request_rows)
        for way in ways:
            if way.beside == 1:
                continue
            if (total_s := self._on_parts_s(way, free_s, rows, near, request_rows)) < best_s:
                best, best_s = way, total_s
        return best

    def _ways(self, most: int | None) -> Sequence[Way]:
        """Return the ways that ``most`` rows of a lane can fill, with the least that hold all."""
        if most is None:
            return [*self._busy_ways]
        least = min((way.size for way in self._busy_ways if way.size >= most), default=most)
        return [way for way in self._busy_ways if way.size <= least]

    def _total_with_s(self, way: Way, rows: int, busy: int, request_rows: int) -> float:
        """Return the sum of completion times of ``busy`` rows, the first ones in this way.

        A batch begins now, with no more than the ``rows`` that wait. Those on other parts of the
        device can begin as other rows come; they count as no fuller than this one.
        """
        taken = min(busy, min(way.size, rows) * way.beside)
        return self._latency[way] * _whole(busy, request_rows) + self.total_s(
            busy - taken, request_rows
        )

    def _on_parts_s(
        self, way: Way, free_s: Sequence[float], rows: int, busy: int, request_rows: int
    ) -> float:
        """Return the sum of completion times of ``busy`` rows on parts of the threads.

        Each batch goes to the part that is free first; ``free_s`` tells when each thread is.
        """
        threads = len(free_s) // way.beside
        parts = [free_s[last] for last in range(threads - 1, len(free_s), threads)]
        heapify(parts)
        size = min(way.size, rows)  # as in ``_total_with_s``
        ends = []
        for _ in range(0, busy, size):
            ends.append(parts[0] + self._latency[way])
            heapreplace(parts, ends[-1])
        return sum(
            min(request_rows, busy - first)
            * max(ends[first // size : -(-(first + request_rows) // size)])
            for first in range(0, busy, request_rows)
        )

    def waiting_pays(self, rows: int, gap_s: float | None, longest_s: float) -> bool:
        """Return whether, the device idle, rows that come within ``longest_s`` are worth a wait.

        Compares the expected time that the ``rows`` waiting and the next k rows spend: all of
        them in one batch once the k have come, or the waiting ones now and the k afterwards.
        """
        if gap_s is None or longest_s <= 0:
            return False
        self._refresh()
        now_s = self._table.clearing_s(rows, beside=False)
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
        revision, all_beside = self._table.revision, self._table.is_all_beside
        if (self._revision, self._is_all_beside) != (revision, all_beside) or not self._latency:
            self._revision, self._is_all_beside = revision, all_beside
            self._latency = {way: self._table.seconds(*way) for way in self._table.ways}
            self._busy_ways = {
                way: seconds
                for way, seconds in self._latency.items()
                if all_beside in (None, way.beside > 1)
            }
            self._totals.clear()


def _whole(rows: int, request_rows: int) -> int:
    """Rows of the requests of ``request_rows`` rows to which the last ``rows`` rows belong."""
    return rows + -rows % request_rows
