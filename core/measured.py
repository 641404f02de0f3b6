"""Latencies as measured: which ones cannot be, and how two ways of running a model compare.

engine (timers) ──> server.jobs ──> store        each refuses what ``check_latency`` refuses
"""

from __future__ import annotations

from math import isfinite

from core.errors import WorkerFault


def is_latency(latency_us: object) -> bool:
    """Whether something can have taken this long: a finite number above zero."""
    return isinstance(latency_us, int | float) and isfinite(latency_us) and latency_us > 0


def check_latency(latency_us: float | None) -> None:
    """Refuse a latency that cannot be; None is one that nobody knows.

    Raises:
        WorkerFault: it is not a finite number above zero.
    """
    if latency_us is not None and not is_latency(latency_us):
        raise WorkerFault(f"a latency of {latency_us!r} us was measured, which cannot be")
