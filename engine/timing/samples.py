"""Reduction of a series of timings, and the reference work that shows a drifting machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch

from braid.core.measurement import StageLatency, is_latency
from braid.engine.runtime.yielding import RESOLUTION_NS, NetTime

REFERENCE_DRIFT = 0.10  # largest difference from the median reference, as a fraction


@dataclass(frozen=True, slots=True)
class TimerOptions:
    """Samples and series of one stage's measurement."""

    repeats: int = 7  # samples of a series, of which the median counts
    agreeing: int = 3  # a series ends early once this many samples agree ...
    agreement: float = 0.03  # ... within this fraction of their median
    max_series: int = 3  # how often a series may be repeated because the machine drifted
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


def steady(
    samples_us: Sequence[float],
    reference_us: Sequence[float],
    drift: float = REFERENCE_DRIFT,
    usual_us: float | None = None,
) -> list[float]:
    """Samples whose reference is within ``drift``, a fraction, of ``usual_us`` or the median."""
    usual_us = statistics.median(reference_us) if usual_us is None else usual_us
    return [
        sample
        for sample, reference in zip(samples_us, reference_us, strict=True)
        if abs(reference - usual_us) <= drift * usual_us
    ]


class ReferenceWork:
    """A fixed piece of work of about 0.2 ms, run beside every sample."""

    def __init__(self) -> None:
        self._left = torch.ones(192, 192)
        self._right = torch.full((192, 192), 0.5)

    def run(self) -> None:
        for _ in range(4):
            torch.mm(self._left, self._right)


class Sweep:
    """Work that fills the caches of each core with data that no stage reads."""

    def __init__(self, cores: int) -> None:
        size_bytes = 2 * _near_cache_bytes() * cores
        self._memory = torch.zeros(size_bytes // 4, dtype=torch.float32)

    def run(self) -> None:
        self._memory.add_(1.0)


def _near_cache_bytes() -> int:
    """Size of one core's level 2 cache."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.rstrip("KM")) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return 2 << 20
