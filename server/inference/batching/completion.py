"""Which batch size ends the waiting soonest, and whether it pays to wait for more rows.

Every row that waits is delayed by each batch that runs before its own ends. So n rows, served
one batch after the other, wait together for at least

    total(n) = min over sizes b of  latency(b) * n + total(n - min(b, n))

The first batch of the best order is what runs. Rows that will arrive while these are served count
as well: with utilisation u, a busy period that begins with n rows serves n / (1 - u). So the
choice moves from the lowest latency, when there is little to do, to the highest throughput.
"""

from __future__ import annotations

from braid.server.inference.batching.latencies import LatencyTable

HORIZON_ROWS = 512
"""Rows looked ahead. Beyond, throughput is all that counts."""

MAX_UTILISATION = 0.95

WORTH = 0.95
"""Waiting must promise at least this much of the total without it: estimates are noisy."""


class CompletionPlan:
    """Decisions for one latency table; made anew when the table has changed."""

    def __init__(self, table: LatencyTable) -> None:
        self._table = table
        self._revision = -1
        self._latency: dict[int, float] = {}
        self._total: list[float] = [0.0]

    def total_s(self, rows: int) -> float:
        """Least sum of completion times of ``rows`` rows; ``rows`` at most HORIZON_ROWS."""
        self._refresh()
        total, latency = self._total, self._latency
        for n in range(len(total), rows + 1):
            total.append(min(s * n + total[max(0, n - b)] for b, s in latency.items()))
        return total[rows]

    def best_size(self, rows: int, gap_s: float | None = None) -> int:
        """The batch size to run now.

        Args:
            rows: waiting, at least 1.
            gap_s: expected time between arriving rows; None if unknown.
        """
        self._refresh()
        busy = self._busy_period(rows, gap_s)
        if busy > HORIZON_ROWS:
            return min(self._latency, key=lambda b: self._latency[b] / min(b, rows))
        self.total_s(busy)
        return min(
            self._latency,
            key=lambda b: self._latency[b] * busy + self._total[busy - min(b, rows)],
        )

    def waiting_pays(self, rows: int, gap_s: float | None, longest_s: float) -> bool:
        """Whether rows that will come within ``longest_s`` are worth waiting for, the device idle.

        Compares the expected time that the ``rows`` waiting and the next k rows spend: all of
        them in one batch once the k have come, or the waiting ones now and the k afterwards.
        """
        if gap_s is None or longest_s <= 0:
            return False
        self._refresh()
        now_s = self._latency[self._table.size_for(rows)]
        for size in self._table.sizes:
            more = size - rows
            if more <= 0:
                continue
            last_s = more * gap_s
            if last_s > longest_s:
                break
            together = rows * last_s + gap_s * more * (more - 1) / 2 + size * self._latency[size]
            if together < WORTH * self._one_after_the_other(rows, more, gap_s, now_s):
                return True
        return False

    def _one_after_the_other(self, rows: int, more: int, gap_s: float, now_s: float) -> float:
        """Time spent if the waiting rows run now. Later rows wait only while those run."""
        during = min(more, int(now_s / gap_s)) if gap_s > 0 else more
        waited = during * now_s - gap_s * during * (during + 1) / 2
        after = self.total_s(min(during, HORIZON_ROWS))
        alone = (more - during) * self._latency[self._table.size_for(1)]
        return rows * now_s + waited + after + alone

    def _busy_period(self, rows: int, gap_s: float | None) -> int:
        if not gap_s:
            return rows
        utilisation = min(MAX_UTILISATION, self._table.seconds_per_row / gap_s)
        return max(rows, round(rows / (1 - utilisation)))

    def _refresh(self) -> None:
        if self._revision != self._table.revision or not self._latency:
            self._revision = self._table.revision
            self._latency = {size: self._table.seconds(size) for size in self._table.sizes}
            self._total = [0.0]
