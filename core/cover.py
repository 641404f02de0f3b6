"""Cheapest batches that hold some rows, by the measured latency of each batch size.

    least(n) = min over batches b of  latency(b) + least(n - min(rows of b, n))

So rows are cut, padded or both. Every size may be used again and again.
"""

from collections.abc import Sequence
from math import inf

HORIZON_ROWS = 512
"""Rows looked at one by one. Of more, the first run in the batch that is cheapest a row, and those
that a single batch holds in one, if that is cheaper."""

_Batch = tuple[int, float]
"""Rows, and what they take."""


class Cover:
    """Cheapest batches for any number of rows; every number is computed once."""

    def __init__(self, batches: Sequence[_Batch]) -> None:
        """``batches``: the rows of each kind of batch and what it takes, at least one."""
        self._batches = batches
        self._cheapest = min(batches, key=lambda batch: batch[1] / batch[0])
        self._least_cost = min(cost for _, cost in batches)
        self._most_rows = max(HORIZON_ROWS, *(size for size, _ in batches))
        self._least = [0.0]
        self._first: dict[int, int] = {}  # of rows within the horizon, as they are asked for

    def least(self, rows: int) -> float:
        """Return what ``rows`` rows take in the cheapest batches, one after the other."""
        whole = self._whole(rows, self._most_rows)
        size, cost = self._cheapest
        rest = max(0, rows - whole * size)
        return whole * cost + min(self._single(rest), self._several(rest))

    def first(self, rows: int) -> int:
        """Return the index of the batch to begin with: the fullest of those that are needed."""
        if rows > self._most_rows:
            return self._batches.index(self._cheapest)
        at = self._first.get(rows)
        if at is None:
            at = self._first[rows] = self._first_of(rows)
        return at

    def _first_of(self, rows: int) -> int:
        single, several = self._single(rows), self._several(rows)
        if single <= several * (1 + 1e-9):
            return self._fullest(
                rows, [cost if size >= rows else inf for size, cost in self._batches]
            )
        if self._whole(rows, HORIZON_ROWS):
            return self._batches.index(self._cheapest)
        least = self._least
        return self._fullest(
            rows, [cost + least[max(0, rows - size)] for size, cost in self._batches]
        )

    def _fullest(self, rows: int, costs: Sequence[float]) -> int:
        """Index of the batch with the least cost; of equals, the one with the least padding."""
        most = min(costs) * (1 + 1e-9)
        sizes = [(at, size) for at, (size, _) in enumerate(self._batches) if costs[at] <= most]
        return max(sizes, key=lambda one: (min(one[1], rows), min(0, rows - one[1])))[0]

    def _single(self, rows: int) -> float:
        """Cost of the cheapest batch that holds all rows; infinite if none does."""
        if not rows:
            return 0.0
        return min((cost for size, cost in self._batches if size >= rows), default=inf)

    def _several(self, rows: int) -> float:
        """Least cost of any batches; infinite if they cannot cost less than a single one."""
        if self._single(rows) <= 2 * self._least_cost:
            return inf
        whole = self._whole(rows, HORIZON_ROWS)
        size, cost = self._cheapest
        rest = max(0, rows - whole * size)
        least, batches = self._least, self._batches
        for n in range(len(least), rest + 1):
            least.append(min([c + least[n - b] if n > b else c for b, c in batches]))
        return whole * cost + least[rest]

    def _whole(self, rows: int, most: int) -> int:
        """Number of the batches cheapest a row that run before at most ``most`` rows are left."""
        return max(0, -((most - rows) // self._cheapest[0]))
