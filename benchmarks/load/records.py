"""What a load generator is asked to do and what it answers. Plain data, sent as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Something that answers Infer with its only input, FP32, times ``scale``."""

    name: str
    address: str
    model: str
    scale: float


@dataclass(frozen=True, slots=True)
class Job:
    """What to load, and how: each client sends its next request when it has its answer."""

    address: str
    model: str
    scale: float
    shape: tuple[int, ...]
    clients: int
    warmup_s: float
    measure_s: float
    timeout_s: float = 30.0


@dataclass(slots=True)
class Samples:
    """What the clients saw after the warm-up; times in microseconds.

    The last four are what the server itself reports, empty where it reports nothing.
    """

    seconds: float = 0.0
    latency_us: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    queue_us: list[int] = field(default_factory=list)
    compute_us: list[int] = field(default_factory=list)
    total_us: list[int] = field(default_factory=list)
    batch_rows: list[int] = field(default_factory=list)

    def merge(self, other: Samples) -> None:
        """Add what another process saw in the same time."""
        self.seconds = max(self.seconds, other.seconds)
        self.errors.update(other.errors)
        for name in ("latency_us", "queue_us", "compute_us", "total_us", "batch_rows"):
            getattr(self, name).extend(getattr(other, name))
