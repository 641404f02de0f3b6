"""Two ways of running a model, compared turn by turn: is one faster, or is it a draw?

    turns of A   7.1  7.3  9.8  7.2 ...     ratio per turn: 1.04  1.03  1.05  1.04 ...
    turns of B   6.8  7.1  9.3  6.9 ...     ──> median, and an interval that holds the true one

What slows the machine down for a while slows both down in that turn, and their ratio stays. The
interval is that of the sign test (order statistics of the ratios), which assumes nothing about how
they scatter; a few turns in which something interfered do not move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

DOUBT = 0.1
"""Probability that the true ratio of two that run again and again lies outside, on either side."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of latencies, slower over faster if it is above 1."""

    median: float
    least: float
    most: float


def ratio(above_us: Sequence[float], below_us: Sequence[float]) -> Ratio:
    """Of the latencies of two in the same turns, of which there is at least one."""
    ratios = sorted(a / b for a, b in zip(above_us, below_us, strict=True))
    left_out = _left_out(len(ratios))
    return Ratio(median(ratios), ratios[left_out], ratios[-1 - left_out])


def _left_out(turns: int) -> int:
    """How many of the extreme ratios on each side lie outside the interval."""
    outside, count = 2 / 2**turns, 0
    while (outside := outside + 2 * comb(turns, count + 1) / 2**turns) <= DOUBT:
        count += 1
    return count
