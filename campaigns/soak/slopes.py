"""Whether a series of measurements grows: its slope with an interval, whatever its noise is like.

The slope is the median of the slopes of all pairs (Theil and Sen), its interval the one that
Kendall's test leads to (Sen 1968): no distribution is assumed, and single peaks count little.
Neighbouring samples are not independent, so a series is cut into blocks first, of which each
counts with its median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import NormalDist, median

BLOCKS = 24
CONFIDENCE = 0.99

Series = Sequence[tuple[float, float]]
"""Pairs of seconds and a value."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth in parts of the median value an hour, with its interval."""

    an_hour: float
    least: float
    most: float

    def is_above(self, limit: float) -> bool:
        """True if the value grows by more than ``limit`` an hour beyond doubt."""
        return self.least > limit

    def row(self) -> dict[str, float]:
        """In per cent, ready for JSON."""
        return {
            "% an hour": round(100 * self.an_hour, 2),
            "at least": round(100 * self.least, 2),
            "at most": round(100 * self.most, 2),
        }


def slope(series: Series, blocks: int = BLOCKS) -> Slope:
    """Slope of a series in order of time; from fewer than five blocks its interval is infinite."""
    points = medians(series, blocks)
    level = median(value for _, value in points) or 1.0
    slopes = sorted(
        (later - earlier) / (then - now) * 3600 / level
        for (now, earlier), (then, later) in combinations(points, 2)
        if then > now
    )
    count = len(points)
    if count < 5:
        return Slope(median(slopes) if slopes else 0.0, float("-inf"), float("inf"))
    spread = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * spread / 2
    low = max(0, round(len(slopes) / 2 - half))
    high = min(len(slopes) - 1, round(len(slopes) / 2 + half))
    return Slope(median(slopes), slopes[low], slopes[high])


def medians(series: Series, blocks: int = BLOCKS) -> list[tuple[float, float]]:
    """Cut a series into blocks; returns the median time and value of each."""
    size = max(1, len(series) // blocks)
    cut = [series[start : start + size] for start in range(0, len(series), size)]
    return [
        (median(seconds for seconds, _ in block), median(value for _, value in block))
        for block in cut
    ]
