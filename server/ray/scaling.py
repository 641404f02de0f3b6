"""How many nodes: by how long a request would wait, and by how busy the devices are.

The expected waiting is rows times latency: what waits on a device takes so long by its latency
table. It grows before anything fails and whatever the sizes of requests and models are, which a
count of requests does not. Waiting alone would let a fleet shrink that is busy but keeps up.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WAITING_MS, BUSY = "waiting_ms", "busy"
"""Statistics of a node: mean expected waiting in milliseconds, and part of the time at work."""

SAMPLE_SECONDS = 0.1

MOST_GROWTH = 2.0
"""Factor by which one decision may add nodes: the waiting of a crowd says nothing of its size."""


@dataclass(slots=True)
class LoadMeter:
    """Means of a node's backlogs since they were last asked for. Belongs to the event loop."""

    _backlogs_s: Callable[[], Sequence[float]]  # seconds of work that each device has
    _samples: int = 0
    _waiting_s: float = 0.0
    _busy: float = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.sample()

    def sample(self) -> None:
        """Look at the devices now. A request goes to the device that would end it first."""
        backlogs = self._backlogs_s()
        self._samples += 1
        self._waiting_s += min(backlogs)
        self._busy += sum(backlog > 0 for backlog in backlogs) / len(backlogs)

    def take(self) -> dict[str, float]:
        if not self._samples:
            self.sample()
        means = {
            WAITING_MS: 1000 * self._waiting_s / self._samples,
            BUSY: self._busy / self._samples,
        }
        self._samples, self._waiting_s, self._busy = 0, 0.0, 0.0
        return means


@dataclass(frozen=True, slots=True)
class ExpectedWaiting:
    """Policy of Ray Serve's autoscaler: as many nodes as keep waiting and busyness at targets.

    A node's load is the larger one of waiting / ``target_waiting_ms`` and busy / ``target_busy``;
    the sum of the loads is the number of nodes wanted. Ray Serve applies the delays and bounds.
    """

    target_waiting_ms: float = 50.0
    target_busy: float = 0.7

    def __post_init__(self) -> None:
        if not (self.target_waiting_ms > 0 and 0 < self.target_busy <= 1):
            raise ValueError("target_waiting_ms is above 0, target_busy above 0 and at most 1")

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of nodes wanted, not rounded, and no state."""
        metrics = context.aggregated_metrics or {}  # by statistic and node
        waiting, busy = metrics.get(WAITING_MS, {}), metrics.get(BUSY, {})
        loads = [self._load(waiting[node], busy.get(node, 0.0)) for node in waiting]
        if not loads:
            return context.target_num_replicas, {}
        return context.current_num_replicas * sum(loads) / len(loads), {}

    def _load(self, waiting_ms: float, busy: float) -> float:
        load = max(waiting_ms / self.target_waiting_ms, busy / self.target_busy)
        return min(load, MOST_GROWTH)
