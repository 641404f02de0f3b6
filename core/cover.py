"""Cheapest batches that hold some rows, by the measured latency of each batch size.

    least(n) = min over batches b of  latency(b) + least(n - min(rows of b, n))

So rows are cut, padded or both. Every size may be used again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

HORIZON_ROWS = 512
"""Rows looked at one by one. Of more, the first run in the batch that is cheapest a row."""


class Cover:
    """Cheapest batches for any number of rows; every number is computed once."""

    def __init__(self, batches: Sequence[tuple[int, float]]) -> None:
        """``batches``: the rows of each kind of batch and what it takes, at least one."""
        self._batches = batches
        self._cheapest = min(range(len(batches)), key=lambda at: batches[at][1] / batches[at][0])
        self._least = [0.0]
        self._first = [self._cheapest]

    def least(self, rows: int) -> float:
        """Return what ``rows`` rows take in the cheapest batches, one after the other."""
        whole = self._whole(rows)
        size, cost = self._batches[self._cheapest]
        rest = max(0, rows - whole * size)
        self._extend(rest)
        return whole * cost + self._least[rest]

    def first(self, rows: int) -> int:
        """Return the index of the batch to begin with: the fullest of those that are needed."""
        if self._whole(rows):
            return self._cheapest
        self._extend(rows)
        return self._first[rows]

    def _whole(self, rows: int) -> int:
        """Number of batches that run before the rest is within the horizon."""
        return max(0, -((HORIZON_ROWS - rows) // self._batches[self._cheapest][0]))

    def _extend(self, rows: int) -> None:
        least, batches = self._least, self._batches
        for n in range(len(least), rows + 1):
            costs = [cost + least[max(0, n - size)] for size, cost in batches]
            best = min(costs)
            least.append(best)
            equal = [at for at, cost in enumerate(costs) if cost <= best * (1 + 1e-9)]
            self._first.append(max(equal, key=lambda at: _fill(batches[at][0], n)))


def _fill(size: int, rows: int) -> tuple[int, int]:
    """Rows that a batch takes of ``rows``, and its padding, negative."""
    return min(size, rows), min(0, rows - size)
