"""Admission of requests to a device's queues: queue limits, expected waits, and refused versions.

Model versions whose runs held a device up, or ended its worker, again and again are refused for a
while, by name:

    strikes: 1 ── 2 ── 3 within ten minutes ──> refused for five ──> counted anew

A strike is a run that was ended since it took too long, with its worker or without, or in which the
worker crashed (not one that was killed). What ends at its caller's deadline, when it is told to, is
none. Requests that wait already are refused, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from math import inf
from time import monotonic

from braid.core.errors import DeadlineExceeded, ModelQuarantined, QueueFull
from braid.server.inference.batching.queues import Lane, ModelQueue
from braid.server.inference.latencies import LatencyTable
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest

CROWD = 8
"""Waiting requests from which on the latency table is trusted to say who will be late."""

SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.001, 30.0

STRIKES = 3
WITHIN_S = 600.0
REFUSED_S = 300.0

Version = tuple[str, int]
"""A model's name and the number of a version."""


class Quarantine:
    """Strikes of model versions on all devices of a server, by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._strikes: dict[Version, deque[float]] = {}
        self._refused_until: dict[Version, float] = {}

    def strike(self, name: str, version: int) -> bool:
        """Count a run that took too long or crashed; True: the version is refused from now on."""
        now = self._clock()
        strikes = self._strikes.setdefault((name, version), deque(maxlen=STRIKES))
        strikes.append(now)
        if len(strikes) < STRIKES or now - strikes[0] > WITHIN_S:
            return False
        del self._strikes[name, version]
        self._refused_until[name, version] = now + REFUSED_S
        return True

    def check(self, name: str, version: int) -> None:
        if not self._refused_until:
            return
        until = self._refused_until.get((name, version))
        if until is None:
            return
        left_s = until - self._clock()
        if left_s <= 0:
            del self._refused_until[name, version]
            return
        raise ModelQuarantined(
            f"version {version} of {name!r} held its device up {STRIKES} times, or ended its "
            f"worker, and is refused for {left_s:.0f} s more; send it inputs that it ends on, or "
            "register a version that always ends"
        )

    def forget(self, name: str, version: int) -> None:
        self._strikes.pop((name, version), None)
        self._refused_until.pop((name, version), None)


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Work of one device, and how long requests would wait behind it now."""

    queues: Collection[ModelQueue]
    free_s: Callable[[], float]  # seconds until the device has done what was sent to it

    def admit(
        self,
        queue: ModelQueue,
        request: CheckedRequest,
        lane_key: Hashable,
        deadline: float | None,
        now: float,
    ) -> None:
        """Raise QueueFull for what does not fit, DeadlineExceeded for what could only be late."""
        if deadline is not None and deadline <= now:
            raise DeadlineExceeded("the deadline had passed when the request came")
        policy = queue.model.policy
        if policy.max_queue_s < inf:
            self._check_wait(queue, request, lane_key)
        if not queue.rows:
            return
        lane = queue.lane(lane_key)
        over = queue.rows + request.rows - policy.max_rows
        if queue.requests >= policy.max_requests or over > 0:
            raise self.full(queue, lane, max(1, over))
        if deadline is None or queue.requests < CROWD:
            return
        before = lane.rows_before(request.priority)
        wait_s = self.clearing_s(queue.model, lane.table, before + request.rows)
        if now + wait_s > deadline:
            raise QueueFull(
                f"{before} rows wait before this request, which takes {wait_s:.3f} s; its deadline "
                f"is in {deadline - now:.3f} s: allow more time or send fewer at once",
                self._retry_after_s(lane, before),
            )

    def full(self, queue: ModelQueue, lane: Lane, over: int) -> QueueFull:
        """Return the refusal of a request for which ``over`` rows too many wait."""
        return QueueFull(
            f"{queue.requests} requests with {queue.rows} rows wait for this model already; "
            "send fewer at once or try again",
            self._retry_after_s(lane, over),
        )

    def clearing_s(self, model: ModelReplica, table: LatencyTable, rows: int) -> float:
        """Expected seconds until ``rows`` rows of a model are done, beside the other models'."""
        others = sum(
            queue.model.policy.share
            for queue in self.queues
            if queue.model is not model and not queue.is_empty
        )
        share = model.policy.share
        return self.free_s() + table.clearing_s(rows) * (share + others) / share

    def backlog_s(self) -> float:
        """Expected seconds until all that waits is done, of all models."""
        lanes = (lane for queue in self.queues for lane in queue.lanes)
        return self.free_s() + sum(lane.table.clearing_s(lane.rows) for lane in lanes)

    def _check_wait(self, queue: ModelQueue, request: CheckedRequest, lane_key: Hashable) -> None:
        """Refuse a request that would wait longer than the policy allows."""
        lane, longest_s = queue.lane(lane_key), queue.model.policy.max_queue_s
        before = lane.rows_before(request.priority)
        wait_s = self.clearing_s(queue.model, lane.table, before)
        if wait_s > longest_s:
            raise QueueFull(
                f"{before} rows wait before this request, which takes {wait_s:.3f} s; at most "
                f"{longest_s:.3f} s are allowed: send fewer at once or try again",
                min(max(SHORTEST_RETRY_S, wait_s - longest_s), LONGEST_RETRY_S),
            )

    def _retry_after_s(self, lane: Lane, rows: int) -> float:
        """Seconds until ``rows`` of the rows that wait now will be gone."""
        seconds = self.free_s() + lane.table.clearing_s(rows)
        return min(max(SHORTEST_RETRY_S, seconds), LONGEST_RETRY_S)
