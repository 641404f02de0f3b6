"""Samples of a stage's latency, and their reduction."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from braid.core.measurement import StageLatency, is_latency
from braid.engine.runtime.yielding import RESOLUTION_NS, NetTime


@dataclass(frozen=True, slots=True)
class TimerOptions:
    """Samples and series of one stage's measurement."""

    repeats: int = 7  # samples of a series, of which the median counts
    agreeing: int = 3  # a series ends early once this many samples agree ...
    agreement: float = 0.03  # ... within this fraction of their median
    most_s: float = 0.3  # after which ``agreeing`` samples are enough

    def agree(self, samples_us: Sequence[float]) -> bool:
        """Whether the samples so far leave little to learn from more of them."""
        if len(samples_us) < self.agreeing:
            return False
        span_us = max(samples_us) - min(samples_us)
        return span_us <= self.agreement * statistics.median(samples_us)


ATTEMPTS = 3  # to take a sample that no request interrupts


def uninterrupted(sample: Callable[[], NetTime]) -> float:
    """Microseconds of a sample that was not interrupted, out of several if need be.

    If all of them are, the least: interruptions add to a latency. One that cannot be
    (``braid.core.measurement``) counts as interrupted, and never as a latency.
    """
    least = inf
    for _ in range(ATTEMPTS):
        latency = sample()
        if is_latency(latency.us):
            if not latency.was_interrupted:
                return latency.us
            least = min(latency.us, least)
    return least if least < inf else RESOLUTION_NS / 1e3


def reduce_samples(samples_us: Sequence[float]) -> StageLatency:
    median = statistics.median(samples_us)
    if len(samples_us) < 2:
        return StageLatency(median, 0.0, len(samples_us))
    lower, _, upper = statistics.quantiles(samples_us, n=4, method="inclusive")
    return StageLatency(median, (upper - lower) / median, len(samples_us))
