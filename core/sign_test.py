"""Two ways of running a model, compared turn by turn: is one faster, or is it a draw?

    turns of A   7.1  7.3  9.8  7.2 ...     ratio per turn: 1.04  1.03  1.05  1.04 ...
    turns of B   6.8  7.1  9.3  6.9 ...     ──> median, and an interval that holds the true one

What slows the machine down for a while slows both down in that turn, and their ratio stays. The
interval is that of the sign test (order statistics of the ratios), which assumes nothing about how
they scatter; a few turns in which something interfered do not move it.
"""

from collections.abc import Sequence
from math import comb
from statistics import median

from braid.core.measurement import Speed

DOUBT = 0.1
"""Probability that the true ratio of two that run again and again lies outside, on either side."""


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Interval that holds the true median of such values; None: fewer than five prove nothing."""
    count, ordered = len(values), sorted(values)
    if 2 / 2**count > DOUBT:
        return None
    outside, left_out = 2 / 2**count, 0  # extreme values on each side
    while (outside := outside + 2 * comb(count, left_out + 1) / 2**count) <= DOUBT:
        left_out += 1
    return ordered[left_out], ordered[-1 - left_out]


def sign_test_interval(ratios: Sequence[float]) -> Speed | None:
    """Median of latency ratios, one a turn, and its sign-test interval; None if they prove nothing.

    Of fewer than five turns even the smallest and the largest ratio are no interval: of a plan that
    was given up after two runs nothing is known but that it was slow in these.
    """
    interval = median_interval(ratios)
    return None if interval is None else Speed(median(ratios), *interval)


def speed_beside(one_us: Sequence[float], other_us: Sequence[float]) -> Speed | None:
    """Median latency ratio of two plans in the same turns, and its sign-test interval."""
    return sign_test_interval([other / one for one, other in zip(one_us, other_us, strict=True)])
