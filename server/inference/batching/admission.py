"""Admission of requests to a device's queues: queue limits and expected waits."""

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from math import inf

from braid.core.errors import DeadlineExceeded, QueueFull
from braid.server.inference.batching.queues import Lane, ModelQueue
from braid.server.inference.latencies import LatencyTable
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest

CROWD = 8
"""Waiting requests from which on the latency table is trusted to say who will be late."""

SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.001, 30.0


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
        seconds = self.free_s() + lane.table.clearing_s(rows)
        return min(max(SHORTEST_RETRY_S, seconds), LONGEST_RETRY_S)
