"""Decides which batch a device runs next; every request ends exactly once.

    submit ──DeviceLoad.admit──> queue of the model ──> Batch (one shape class, in order)
                                                           │
    caller <── its rows ────────────────────────── BatchRunner.run

While the device is busy, what arrives collects: the next batch is sent just before the present
one ends, or as soon as a largest batch is full. With the device idle, the batch size is the one
that ends the waiting soonest (``batch_sizes``), and a model waits for more rows only while that is
expected to pay, at most as long as its policy says and as every deadline in the batch allows.
Where batches side by side on parts of the threads end the waiting sooner, they run so
(``device_time``, docs/decisions/0037-requests-side-by-side.md).

Models that have work share the device's time by their policies' shares: the one that used the
least goes first. Inside a model the priority decides, then the order of arrival.

A request leaves at once when its caller goes away or its deadline passes.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic, perf_counter_ns
from typing import Protocol

from braid.core.errors import QueueFull
from braid.core.inputs import ShapeClass
from braid.server.inference.batching.admission import DeviceLoad
from braid.server.inference.batching.batch_runner import BatchRunner
from braid.server.inference.batching.device_time import DeviceTime
from braid.server.inference.batching.execution import Execution
from braid.server.inference.batching.queues import (
    Batch,
    BatchObserver,
    Lane,
    ModelQueue,
    Piece,
    Ticket,
)
from braid.server.inference.latencies import Way
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest, InferenceResult


class Handle(Protocol):
    """Handle of a callback to come, which may be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, in seconds from an arbitrary moment, and callbacks."""

    def now(self) -> float:
        """Return the time that deadlines refer to."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        """Call back at ``when``, or soon if that is past."""


class MonotonicClock:
    """``time.monotonic`` and the running event loop."""

    now = staticmethod(monotonic)

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        return asyncio.get_running_loop().call_later(when - monotonic(), callback)


class Batcher:
    """Queues of one device. Belongs to the event loop."""

    def __init__(self, execution: Execution, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or MonotonicClock()
        self._runner = BatchRunner(execution, self._clock.now, self._waits)
        self._queues: dict[ModelReplica, ModelQueue] = {}
        self._waiting: dict[ModelQueue, None] = {}  # those in which something waits, in order
        self._in_flight: dict[asyncio.Task[bool], Batch] = {}
        self._time = DeviceTime(self._clock.now)
        self._load = DeviceLoad(self._queues.values(), self._time.left_s)
        self._used_s = 0.0  # of the queue that went last: where a queue that wakes up begins
        self._alarm: Handle | None = None
        self._draining: list[asyncio.Future[None]] = []  # done as soon as something ends

    async def submit(
        self,
        model: ModelReplica,
        request: CheckedRequest,
        observer: BatchObserver,
        deadline: float | None = None,
        lane: ShapeClass | None = None,
    ) -> InferenceResult:
        """Run one request; cancelling the caller takes it out of the queue.

        Args:
            deadline: by the clock; after it the result is of no use.
            lane: the class that it runs in; None: the model says which.

        Raises QueueFull, DeadlineExceeded, RunTooLong, ModelQuarantined or WorkerRestarting.
        """
        queue, ticket = self._accept(model, request, observer, deadline, lane)
        alarm = None
        try:
            if not self._send_alone(queue, ticket):
                queue.add(ticket)
                self._waiting[queue] = None
                self._pump()
                if not queue.is_empty:
                    queue.tell()
            if deadline is not None:
                alarm = self._clock.call_at(deadline, ticket.expire)
            return await ticket.result
        except BaseException:
            ticket.close()
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
            if queue.rows and queue.discard(ticket):
                self._taken_from(queue)

    def _accept(
        self,
        model: ModelReplica,
        request: CheckedRequest,
        observer: BatchObserver,
        deadline: float | None,
        wanted: ShapeClass | None,
    ) -> tuple[ModelQueue, Ticket]:
        """Return a request's queue and its ticket, or raise why it is refused."""
        model.strikes.check(model.name, model.version)
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = ModelQueue(model, observer)
        now = self._clock.now()
        queue.arrivals.arrived(now, request.rows)
        lane = model.lane_of(request, queue.requests) if wanted is None else wanted
        self._load.admit(queue, request, lane, deadline, now)
        result: asyncio.Future[InferenceResult] = asyncio.get_running_loop().create_future()
        ticket = Ticket(request, deadline, now, perf_counter_ns(), result, lane)
        if not queue.rows:
            queue.used_s = max(queue.used_s, self._used_s)
        return queue, ticket

    @property
    def is_running(self) -> bool:
        return bool(self._in_flight)

    def expected_s(self, model: ModelReplica, request: CheckedRequest) -> float:
        """Return the expected seconds until a request that came now would be answered."""
        queue = self._queues.get(model)
        key = model.lane_of(request, 0 if queue is None else queue.requests)
        lane = None if queue is None or queue.is_empty else queue.lane(key)
        before = 0 if lane is None else lane.rows_before(request.priority)
        table = model.latencies(key)
        return self._load.clearing_s(model, table, before + request.rows)

    def backlog_s(self) -> float:
        return self._load.backlog_s()

    def refusal(self, model: ModelReplica) -> QueueFull | None:
        """Return why any request for a model would be refused now; None: some would not."""
        queue = self._queues.get(model)
        if queue is None or queue.requests < model.policy.max_requests:
            return None
        return self._load.full(queue, queue.next_lane(), 1)

    async def drain(self, model: ModelReplica | None = None) -> None:
        while any(
            not queue.is_empty or any(batch.queue is queue for batch in self._in_flight.values())
            for at, queue in self._queues.items()
            if model in (None, at)
        ):
            progress = asyncio.get_running_loop().create_future()
            self._draining.append(progress)
            await progress

    def forget(self, model: ModelReplica) -> None:
        self._queues.pop(model, None)

    # -- forming batches ----------------------------------------------------------------------

    def _pump(self) -> None:
        """Send the batches that are due, and set the alarm for the next one."""
        wake_at = inf
        if self._waiting:
            now = wake_at = self._clock.now()
            while wake_at <= now:
                wake_at = self._send_next(now)
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if wake_at == inf else self._clock.call_at(wake_at, self._pump)

    def _send_next(self, now: float) -> float:
        """Send the next batch if one should go now; returns when to look again."""
        # Those of a full device are looked at when a batch ends.
        waiting = [queue for queue in self._waiting if not self._time.is_full(queue)]
        waiting.sort(key=lambda queue: queue.used_s)
        wake_at = inf
        for queue in waiting:
            lane = queue.next_lane()
            way = self._way(queue, lane, now)
            send_at = self._send_at(queue, lane, way, now)
            if send_at <= now:
                self._send(queue, lane, way, now)
                return now
            wake_at = min(wake_at, send_at)
            if self._time.is_busy:
                break  # the batch is next, and waits for the device only: no other goes before it
        return wake_at

    def _send_alone(self, queue: ModelQueue, ticket: Ticket) -> bool:
        """Send a request by itself, past the queue, if that is what ``_pump`` would do with it.

        So it is if nothing runs or waits, waiting for more rows would not pay, and one batch holds
        all rows; returns True if it was sent.
        """
        if self._in_flight or self._waiting:
            return False
        lane, rows, now = queue.lane(ticket.lane), ticket.request.rows, ticket.accepted_at
        if rows > 1 and lane.table.first_size(rows) < rows:
            return False
        if rows < lane.table.sizes[-1] and self._idle_send_at(queue, lane, ticket, rows, now) > now:
            return False
        self._start(queue, lane, [ticket.take(rows)], rows, now)
        return True

    def _send_at(self, queue: ModelQueue, lane: Lane, way: Way, now: float) -> float:
        """Return the time at which the next batch of a queue should go, as far as is known."""
        if not self._time.takes(way.beside, queue):
            return inf  # as above
        if lane.rows >= lane.table.sizes[-1]:
            return now
        busy_until = self._time.free_at(way.beside, queue) - self._runner.lead_s
        if self._time.is_busy_for(queue) and busy_until > now:
            return busy_until
        if way.beside > 1:
            return now
        assert lane.first is not None
        return self._idle_send_at(queue, lane, lane.first, lane.rows, now)

    def _idle_send_at(
        self, queue: ModelQueue, lane: Lane, ticket: Ticket, rows: int, now: float
    ) -> float:
        """Return the time at which ``rows`` rows go to an idle device, with ``ticket`` first."""
        latest = ticket.accepted_at + queue.model.policy.max_wait_s
        if ticket.deadline is not None:
            seconds = lane.table.clearing_s(rows, beside=False)
            latest = min(latest, ticket.deadline - seconds - self._runner.handover_s)
        gap_s = queue.arrivals.gap_s(now)
        if not lane.plan.waiting_pays(rows, gap_s, latest - now):
            return now
        assert gap_s is not None
        return min(latest, now + 2 * gap_s)

    def _way(self, queue: ModelQueue, lane: Lane, now: float) -> Way:
        """Return how the next batch of a queue, of its next lane, should run."""
        lanes = queue.side_by_side(lane)
        rows, requests = sum(at.rows for at in lanes), sum(at.requests for at in lanes)
        request_rows, is_alone = -(-rows // requests), requests == 1
        gap_s = queue.arrivals.gap_s(now)
        most = lane.rows if len(lanes) > 1 else None
        is_apart = self._time.is_busy_for(queue) and lane.table.beside
        free_s = self._time.free_s(queue) if is_apart else ()
        return lane.plan.best_way(
            rows, gap_s, request_rows, is_alone=is_alone, most=most, free_s=free_s
        )

    def _send(self, queue: ModelQueue, lane: Lane, way: Way, now: float) -> None:
        pieces = queue.take(lane, way.size, now)
        self._taken_from(queue)
        if pieces:
            rows = sum([piece.rows for piece in pieces])
            self._start(queue, lane, pieces, rows, now, way.beside)

    def _taken_from(self, queue: ModelQueue) -> None:
        queue.tell()
        if queue.is_empty:
            self._waiting.pop(queue, None)
        self._has_progressed()

    def _start(
        self,
        queue: ModelQueue,
        lane: Lane,
        pieces: Sequence[Piece],
        rows: int,
        now: float,
        beside: int = 1,
    ) -> None:
        if beside > 1:
            size, beside = lane.table.way_for(rows, beside)
        else:
            size = lane.table.size_for(rows)
        self._used_s = max(self._used_s, queue.used_s)
        expected_s, idle = lane.table.seconds(size, beside), self._time.is_free(beside, queue)
        batch = Batch(queue, lane, pieces, size, expected_s, now, was_idle=idle, beside=beside)
        self._time.sent(batch)
        queue.used_s += batch.share_of(expected_s)
        task = asyncio.create_task(self._runner.run(batch))
        self._in_flight[task] = batch
        task.add_done_callback(self._ended)

    def _waits(self, batch: Batch, is_waiting: bool) -> None:
        self._time.waits(batch, is_waiting=is_waiting)
        self._pump()

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._time.ended(self._in_flight.pop(task))
        if self._draining:
            self._has_progressed()
        if self._waiting:
            self._pump()

    def _has_progressed(self) -> None:
        draining, self._draining = self._draining, []
        for progress in draining:
            if not progress.done():
                progress.set_result(None)
