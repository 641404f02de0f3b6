"""What a model version has done since it is known, as plain sums.

The same events that feed the Prometheus metrics, kept in the form that clients may ask for over
the inference protocol: exact counts and nanoseconds, no buckets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Duration:
    """Number of events, and the sum of their durations in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """Count one event that took ``seconds``."""
        self.count += 1
        self.ns += round(seconds * 1e9)


@dataclass(slots=True)
class Statistics:
    """Sums of one model version. Belongs to the event loop."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)  # of requests that were computed
    compute: Duration = field(default_factory=Duration)  # of requests that were computed
    rows: int = 0  # of all batches, without padding
    batches: int = 0
    by_batch_size: dict[int, Duration] = field(default_factory=dict)  # time on the device
    last_request_unix_ms: int = 0

    def request_ended(self, ok: bool, seconds: float) -> None:
        """Count one request by how it ended."""
        (self.success if ok else self.fail).add(seconds)
        self.last_request_unix_ms = time.time_ns() // 1_000_000

    def request_computed(self, queue_seconds: float, compute_seconds: float) -> None:
        """Count the times of one request that the device answered."""
        self.queue.add(queue_seconds)
        self.compute.add(compute_seconds)

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        """Count one batch, and its time on the device in microseconds."""
        self.batches += 1
        self.rows += rows
        self.by_batch_size.setdefault(batch_size, Duration()).add(compute_us / 1e6)
