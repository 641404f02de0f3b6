"""Latencies as measured: which ones cannot be, and how a way of running compares to sequential.

engine (timers) ──> braid.server.jobs ──> store        each refuses what ``check_latency`` refuses
paired ratio with its interval ──speed_text──> CLI, console, messages: the same text everywhere
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from braid.core.errors import WorkerFault


def is_latency(latency_us: object) -> bool:
    """Whether something can have taken this long: a finite number above zero."""
    return isinstance(latency_us, int | float) and isfinite(latency_us) and latency_us > 0


def check_latency(latency_us: float | None) -> None:
    """Refuse a latency that cannot be; None stands for an unknown one.

    Raises:
        WorkerFault: it is not a finite number above zero.
    """
    if latency_us is not None and not is_latency(latency_us):
        raise WorkerFault(f"a latency of {latency_us!r} us was measured, which cannot be")


@dataclass(frozen=True, slots=True)
class Speed:
    """How many times as fast as the sequential plan something runs, above 1 being faster.

    The median of ratios of turns in which both ran, and the interval of the sign test. It is not
    the quotient of two medians: those are of runs that lie apart, on a machine whose speed wanders.
    """

    median: float
    least: float | None = None  # of the interval; None: earlier versions did not record it
    most: float | None = None

    @property
    def is_faster(self) -> bool:
        """Whether it is faster without doubt: the whole interval is above 1."""
        return self.least is not None and self.least > 1.0


def speed_text(speed: Speed | None, unknown: str = "-") -> str:
    """A speed for people: ``1.031x (1.012 to 1.048)``; without an interval the median alone."""
    if speed is None:
        return unknown
    if speed.least is None or speed.most is None or speed.least == speed.most:
        return f"{speed.median:.3f}x"
    return f"{speed.median:.3f}x ({speed.least:.3f} to {speed.most:.3f})"


def spread_text(spread: float | None, unknown: str = "-") -> str:
    """How far runs lie apart, for people: ``3.1%``."""
    return unknown if spread is None else f"{spread:.1%}"
