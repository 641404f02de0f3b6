"""Policy by which the requests of one model are batched: the part that an operator sets."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from braid.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Limits and preferences; everything else follows from latencies and arrivals."""

    max_wait_s: float = 0.005  # for more rows, with the device idle; 0: never wait
    split_requests: bool = False  # cut requests that fit into one batch, to fill up another
    max_requests: int = 1024  # that wait
    max_rows: int = 4096  # that wait
    max_queue_s: float = inf  # expected wait for the device; what would wait longer is refused
    side_by_side: bool = True  # batches on parts of a device's threads, where that pays
    share: float = 1.0  # of the device's time, relative to other models that have work

    def __post_init__(self) -> None:
        if not 0 <= self.max_wait_s <= 10:
            raise InvalidRequest(f"waiting {self.max_wait_s} s for a batch; allowed are 0 to 10 s")
        if not 0.001 <= self.share <= 1000:
            raise InvalidRequest(f"a share of {self.share}; allowed are 0.001 to 1000")
        if not self.max_queue_s > 0:
            raise InvalidRequest(f"a longest wait of {self.max_queue_s} s; it must be above 0")
        if self.max_requests < 1 or self.max_rows < 1:
            raise InvalidRequest("a queue takes at least 1 request and 1 row")


def queue_limit_s(max_queue_ms: float) -> float:
    """The longest expected wait as people set it, in milliseconds, 0 being none."""
    return max_queue_ms / 1000 or inf
