"""Decides what a device runs next; every request ends exactly once.

    submit ──admitted?──> queue of the model ──> batch (one shape class, in order) ──> Execution
                                                                                          │
    caller <── its rows ──────────────────────────────────────────────────────────────────┘

While the device is busy, what arrives collects: the next batch is sent just before the present
one ends, or as soon as a largest batch is full. With the device idle, the batch size is the one
that ends the waiting soonest (``completion``), and a model waits for more rows only while that is
expected to pay, at most as long as its policy says and as every deadline in the batch allows.

Models that have work share the device's time by their policies' shares: the one that used the
least goes first. Inside a model the priority decides, then the order of arrival.

A request leaves at once when its caller goes away or its deadline passes. If a batch fails and
carried several requests, each is run again alone, so that a bad one harms no neighbour.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic, perf_counter_ns
from typing import Protocol

from braid.core.errors import DeadlineExceeded, ModelQuarantined, QueueFull, RunTooLong, Unavailable
from braid.server.inference.batching.execution import Ran
from braid.server.inference.batching.latencies import LatencyTable
from braid.server.inference.batching.quarantine import Quarantine
from braid.server.inference.batching.queues import BatchObserver, Lane, ModelQueue
from braid.server.inference.batching.tickets import Piece, Ticket
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest, InferenceResult
from braid.server.inference.slot_rows import join

log = logging.getLogger("braid.batching")

IN_FLIGHT = 2
"""Batches sent to a device at once: one runs, the next is already there."""

HANDOVER_S, LONGEST_HANDOVER_S = 0.001, 0.01
"""What a batch costs beside the computing: a first guess, and the most that is believed."""

CROWD = 8
"""Waiting requests from which on the latency table is trusted to say who will be late."""

SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.001, 30.0


class Handle(Protocol):
    """Something that will happen, unless it is cancelled."""

    def cancel(self) -> None:
        """Let it not happen."""


class Clock(Protocol):
    """The time, in seconds from an arbitrary moment, and an alarm."""

    def now(self) -> float:
        """The time; deadlines are told by it."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        """Call back at ``when``, or soon if that is past."""


class MonotonicClock:
    """``time.monotonic`` and the running event loop."""

    def now(self) -> float:
        """The time."""
        return monotonic()

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        """Call back at ``when``."""
        return asyncio.get_running_loop().call_later(max(0.0, when - monotonic()), callback)


class Execution(Protocol):
    """What runs batches; see ``braid.server.inference.batching.execution``."""

    async def run(self, model: ModelReplica, pieces: Sequence[Piece], size: int) -> Ran:
        """Run pieces of one shape class as a batch of ``size`` rows."""


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Some pieces on their way to the device."""

    queue: ModelQueue
    lane: Lane
    pieces: Sequence[Piece]
    size: int
    expected_s: float
    was_idle: bool  # the device had nothing else to do


class Batcher:
    """The queues of one device. Belongs to the event loop."""

    def __init__(
        self,
        execution: Execution,
        clock: Clock | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._execution = execution
        self._quarantine = quarantine or Quarantine()
        self._clock: Clock = clock or MonotonicClock()
        self._queues: dict[ModelReplica, ModelQueue] = {}
        self._in_flight: dict[asyncio.Task[bool], _Batch] = {}
        self._free_at = 0.0  # when the device will have done what was sent to it
        self._used_s = 0.0  # of the queue that went last: where a queue that wakes up begins
        self._handover_s = HANDOVER_S
        self._alarm: Handle | None = None
        self._progress = asyncio.Event()  # set, and replaced, whenever something ended

    async def submit(
        self,
        model: ModelReplica,
        request: CheckedRequest,
        observer: BatchObserver,
        deadline: float | None = None,
    ) -> InferenceResult:
        """Run one request; cancelling the caller takes it out of the queue.

        Args:
            model: what to run.
            request: checked against that model.
            observer: of the model's queue.
            deadline: by the clock; nobody wants the result after it.

        Raises:
            QueueFull: too much waits already for this model, or for the deadline to be met.
            DeadlineExceeded: the deadline passed.
            RunTooLong: the run was ended, as it took far too long.
            ModelQuarantined: that happened again and again with this model.
            WorkerRestarting: the worker died, or is not up again yet.
        """
        self._quarantine.check(model.name, model.version)
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = ModelQueue(model, observer)
        now = self._clock.now()
        queue.arrivals.arrived(now, request.rows)
        self._admit(queue, request, deadline, now)
        result: asyncio.Future[InferenceResult] = asyncio.get_running_loop().create_future()
        ticket = Ticket(request, deadline, now, perf_counter_ns(), result)
        if queue.is_empty:
            queue.used_s = max(queue.used_s, self._used_s)
        queue.add(ticket)
        alarm = None if deadline is None else self._clock.call_at(deadline, ticket.expire)
        try:
            self._pump()
            if not queue.is_empty:
                queue.tell()
            return await result
        finally:
            if alarm is not None:
                alarm.cancel()
            if result.cancel() or result.cancelled():
                ticket.ended_without_result()
            else:
                result.exception()  # seen
            ticket.watchers.clear()  # which know it
            if queue.discard(ticket):
                queue.tell()
                self._has_progressed()

    def expected_s(self, model: ModelReplica, request: CheckedRequest) -> float:
        """Time until a request that came now would be answered, as far as is known."""
        queue = self._queues.get(model)
        lane = None if queue is None or queue.is_empty else queue.lane(request.shape_class)
        before = 0 if lane is None else lane.rows_before(request.priority)
        table = model.latencies(request.shape_class)
        return self._clearing_s(model, table, before + request.rows, self._clock.now())

    def refusal(self, model: ModelReplica) -> QueueFull | None:
        """Why any request for a model would be refused now; None: some would not."""
        queue = self._queues.get(model)
        if queue is None or queue.requests < model.policy.max_requests:
            return None
        return self._full(queue, queue.next_lane(), 1, self._clock.now())

    async def drain(self, model: ModelReplica | None = None) -> None:
        """Wait until nothing is queued or running (for ``model``)."""
        while any(
            not queue.is_empty or any(batch.queue is queue for batch in self._in_flight.values())
            for at, queue in self._queues.items()
            if model in (None, at)
        ):
            await self._progress.wait()

    def forget(self, model: ModelReplica) -> None:
        """Drop the (empty) queue of a model that is gone."""
        self._queues.pop(model, None)
        self._quarantine.forget(model.name, model.version)

    # -- admitting ----------------------------------------------------------------------------

    def _admit(
        self, queue: ModelQueue, request: CheckedRequest, deadline: float | None, now: float
    ) -> None:
        """Refuse what would not fit, or in a crowd what could only be late."""
        if deadline is not None and deadline <= now:
            raise DeadlineExceeded("the deadline had passed when the request came")
        policy = queue.model.policy
        if policy.max_queue_s < inf:
            self._admit_by_wait(queue, request, now)
        if queue.is_empty:
            return
        lane = queue.lane(request.shape_class)
        over = queue.rows + request.rows - policy.max_rows
        if queue.requests >= policy.max_requests or over > 0:
            raise self._full(queue, lane, max(1, over), now)
        if deadline is None or queue.requests < CROWD:
            return
        before = lane.rows_before(request.priority)
        wait_s = self._clearing_s(queue.model, lane.table, before + request.rows, now)
        if now + wait_s > deadline:
            raise QueueFull(
                f"{before} rows wait before this request, which takes {wait_s:.3f} s; its "
                f"deadline is in {deadline - now:.3f} s: allow more time or send fewer at once",
                self._retry_after_s(lane, before, now),
            )

    def _admit_by_wait(self, queue: ModelQueue, request: CheckedRequest, now: float) -> None:
        """Refuse what would wait longer than the policy allows."""
        lane, longest_s = queue.lane(request.shape_class), queue.model.policy.max_queue_s
        before = lane.rows_before(request.priority)
        wait_s = self._clearing_s(queue.model, lane.table, before, now)
        if wait_s > longest_s:
            raise QueueFull(
                f"{before} rows wait before this request, which takes {wait_s:.3f} s; at most "
                f"{longest_s:.3f} s are allowed: send fewer at once or try again",
                min(max(SHORTEST_RETRY_S, wait_s - longest_s), LONGEST_RETRY_S),
            )

    def _full(self, queue: ModelQueue, lane: Lane, over: int, now: float) -> QueueFull:
        return QueueFull(
            f"{queue.requests} requests with {queue.rows} rows wait for this model already; "
            "send fewer at once or try again",
            self._retry_after_s(lane, over, now),
        )

    def _clearing_s(self, model: ModelReplica, table: LatencyTable, rows: int, now: float) -> float:
        """Expected time until ``rows`` rows of a model are done, other models taking their part."""
        others = sum(
            each.model.policy.share
            for each in self._queues.values()
            if each.model is not model and not each.is_empty
        )
        share = model.policy.share
        return max(0.0, self._free_at - now) + table.clearing_s(rows) * (share + others) / share

    def _retry_after_s(self, lane: Lane, rows: int, now: float) -> float:
        """When ``rows`` of the rows that wait now will be gone."""
        seconds = max(0.0, self._free_at - now) + lane.table.clearing_s(rows)
        return min(max(SHORTEST_RETRY_S, seconds), LONGEST_RETRY_S)

    # -- forming batches ----------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what is to be sent now, and set the alarm for what may be sent later."""
        wake_at = self._clock.now()
        while len(self._in_flight) < IN_FLIGHT and wake_at <= self._clock.now():
            wake_at = self._send_next(self._clock.now())
        self._wake(wake_at if len(self._in_flight) < IN_FLIGHT else inf)

    def _send_next(self, now: float) -> float:
        """Send the next batch if one should go now; returns when to look again."""
        waiting = [queue for queue in self._queues.values() if not queue.is_empty]
        waiting.sort(key=lambda queue: queue.used_s)
        wake_at = inf
        for queue in waiting:
            send_at = self._send_at(queue, now)
            if send_at <= now:
                self._send(queue, now)
                return now
            wake_at = min(wake_at, send_at)
            if self._in_flight:
                break  # it is next, and waits for the device only: nobody goes before it
        return wake_at

    def _send_at(self, queue: ModelQueue, now: float) -> float:
        """When the next batch of a queue should go, as far as is known now."""
        lane = queue.next_lane()
        if lane.rows >= lane.table.sizes[-1]:
            return now
        busy_until = self._free_at - 2 * self._handover_s
        if self._in_flight and busy_until > now:
            return busy_until
        ticket = lane.first
        assert ticket is not None
        size = lane.table.size_for(lane.rows)
        latest = ticket.accepted_at + queue.model.policy.max_wait_s
        if ticket.deadline is not None:
            latest = min(latest, ticket.deadline - lane.table.seconds(size) - self._handover_s)
        gap_s = queue.arrivals.gap_s(now)
        if not lane.plan.waiting_pays(lane.rows, gap_s, latest - now):
            return now
        assert gap_s is not None
        return min(latest, now + 2 * gap_s)

    def _send(self, queue: ModelQueue, now: float) -> None:
        lane = queue.next_lane()
        wanted = lane.plan.best_size(lane.rows, queue.arrivals.gap_s(now))
        room = max(wanted, lane.table.size_for(queue.first_piece_rows(lane)))
        pieces = queue.take(lane, room, now)
        queue.tell()
        if not pieces:
            return
        size = lane.table.size_for(sum(piece.rows for piece in pieces))
        self._used_s = max(self._used_s, queue.used_s)
        expected_s = lane.table.seconds(size)
        batch = _Batch(queue, lane, pieces, size, expected_s, was_idle=not self._in_flight)
        self._free_at = max(now, self._free_at) + expected_s
        queue.used_s += expected_s / queue.model.policy.share
        task = asyncio.create_task(self._run(batch))
        self._in_flight[task] = batch
        task.add_done_callback(self._ended)

    def _wake(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if when == inf else self._clock.call_at(when, self._pump)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        del self._in_flight[task]
        left_s = sum(each.expected_s for each in self._in_flight.values())
        self._free_at = self._clock.now() + left_s
        self._has_progressed()
        self._pump()

    def _has_progressed(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    # -- running batches ----------------------------------------------------------------------

    async def _run(self, batch: _Batch) -> bool:
        """Run one batch and end all its pieces; returns whether that was a strike."""
        began, model = self._clock.now(), batch.queue.model
        try:
            self._quarantine.check(model.name, model.version)  # it may have waited for long
            ran = await self._execution.run(model, batch.pieces, batch.size)
        except Exception as error:
            self._charge(batch, self._clock.now() - began)
            return await self._failed(batch, error)
        spent_s = self._clock.now() - began
        for piece, outcome in ran.outcomes:
            self._deliver(model, piece, outcome)
        await asyncio.sleep(0)  # the answers go out first
        if ran.rows:
            batch.queue.observer.batch_ran(ran.batch_size, ran.rows, ran.compute_us)
            self._learn(batch, ran.compute_us / 1e6, spent_s)
        return False

    async def _failed(self, batch: _Batch, error: Exception) -> bool:
        """End the pieces of a batch that failed; returns whether that was a strike.

        One request that never ends is one strike: of a batch that took too long, only the pieces
        that do so alone count, or the batch itself if none does.
        """
        was_strike = False
        if len(batch.pieces) > 1 and not isinstance(error, Unavailable | ModelQuarantined):
            was_strike = await self._run_each_alone(batch)
        else:
            for piece in batch.pieces:
                piece.ticket.fail(error)
        if isinstance(error, RunTooLong) and not was_strike:
            self._strike(batch.queue.model)
            return True
        return was_strike

    def _charge(self, batch: _Batch, spent_s: float) -> None:
        """Let a batch that failed count with the time that it took, if that was more than thought.

        Else a model whose runs are ended would get more of the device than its share.
        """
        more_s = max(0.0, spent_s - batch.expected_s)
        batch.queue.used_s += more_s / batch.queue.model.policy.share

    def _strike(self, model: ModelReplica) -> None:
        if self._quarantine.strike(model.name, model.version):
            facts = {"model": model.name, "version": model.version}
            log.error("a model is refused for a while: it held its device up", extra=facts)

    async def _run_each_alone(self, batch: _Batch) -> bool:
        """One of them is bad: the others get their answers. Returns whether one was a strike."""
        was_strike = False
        for piece in batch.pieces:
            if not piece.ticket.has_ended:
                size = batch.lane.table.size_for(piece.rows)
                was_strike |= await self._run(replace(batch, pieces=[piece], size=size))
        return was_strike

    def _deliver(self, model: ModelReplica, piece: Piece, outcome: InferenceResult) -> None:
        """Give a piece's rows to its request, and the answer to the caller once it is whole."""
        ticket = piece.ticket
        if ticket.has_ended:
            return
        if parts := ticket.deliver(piece, outcome):
            whole = parts[0] if len(parts) == 1 else join(model, ticket.request, parts)
            ticket.result.set_result(whole)

    def _learn(self, batch: _Batch, compute_s: float, spent_s: float) -> None:
        """Correct what was believed of the device when the batch was sent."""
        batch.lane.table.observe(batch.size, max(1e-6, compute_s))
        batch.queue.used_s += (compute_s - batch.expected_s) / batch.queue.model.policy.share
        if batch.was_idle:
            handover_s = min(max(0.0, spent_s - compute_s), LONGEST_HANDOVER_S)
            self._handover_s += 0.1 * (handover_s - self._handover_s)
