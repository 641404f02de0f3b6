"""Waiting requests of one model, and the rows of them that ride in one batch.

    ModelQueue
      └── lanes: shape class, or near lengths ──> priority ──> tickets in order of arrival

A ticket ends exactly once: by its result, an error, its deadline, or its caller going away. Only
requests of one lane share a batch: of one shape class, or of lengths near each other where padding
is exact (``lengths``). The lane that holds the first ticket goes first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from braid.core.errors import DeadlineExceeded
from braid.server.inference.batching.batch_sizes import ArrivalRate, CompletionPlan
from braid.server.inference.latencies import LatencyTable
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest, InferenceResult


@dataclass(slots=True, eq=False)
class Ticket:
    """Request from its acceptance to its end."""

    request: CheckedRequest
    deadline: float | None  # by the batcher's clock
    accepted_at: float  # by the batcher's clock
    accepted_ns: int  # time.perf_counter_ns()
    result: asyncio.Future[InferenceResult]
    lane: Hashable = None  # what requests that share its batches have in common
    next_row: int = 0  # rows before it have been taken into batches
    pieces: int = 0  # that they were taken in
    parts: list[tuple[int, InferenceResult]] = field(default_factory=list)  # (first row, outcome)
    watchers: list[Callable[[], object]] = field(default_factory=list)
    """Called when the request ends without a result, so that its run is of no use."""

    @property
    def rows_left(self) -> int:
        return self.request.rows - self.next_row

    @property
    def has_ended(self) -> bool:
        """True if the request has its result, or its caller has left."""
        return self.result.done()

    def is_late(self, now: float) -> bool:
        return self.deadline is not None and self.deadline <= now

    def take(self, rows: int) -> Piece:
        assert 0 < rows <= self.rows_left
        piece = Piece(self, self.request, self.next_row, rows)
        self.next_row += rows
        self.pieces += 1
        return piece

    def deliver(self, piece: Piece, outcome: InferenceResult) -> Sequence[InferenceResult]:
        """Keep a piece's outcome; returns all in order of rows once the last one is kept."""
        self.parts.append((piece.first_row, outcome))
        if self.rows_left or len(self.parts) < self.pieces:
            return ()
        return [part for _, part in sorted(self.parts, key=lambda part: part[0])]

    def succeed(self, result: InferenceResult) -> None:
        if not self.result.done():
            self.result.set_result(result)
            self.watchers.clear()  # which know it

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)
            self.ended_without_result()

    def close(self) -> None:
        if self.result.cancel() or self.result.cancelled():
            self.ended_without_result()
        else:
            self.result.exception()  # seen

    def ended_without_result(self) -> None:
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()

    def expire(self) -> None:
        self.fail(DeadlineExceeded("the deadline passed while the request was queued or running"))


@dataclass(slots=True, eq=False)
class Piece:
    """Some rows of one request: all of them, or as many as a batch takes."""

    ticket: Ticket
    request: CheckedRequest  # the ticket's
    first_row: int
    rows: int


def when_all_ended(pieces: Sequence[Piece], then: Callable[[], object]) -> None:
    """Call ``then`` when the last of the pieces to end does so without a result."""

    def look() -> None:
        for piece in pieces:
            if not piece.ticket.result.done():
                return
        then()

    for piece in pieces:
        piece.ticket.watchers.append(look)
    look()


def still_wanted(pieces: Sequence[Piece], now: float) -> list[Piece]:
    """Return the pieces that have not ended; late tickets end here.

    Asked right before the device is: a batch may have waited for its turn.
    """
    wanted = []
    for piece in pieces:
        ticket = piece.ticket
        if ticket.is_late(now):
            ticket.expire()
        if not ticket.result.done():
            wanted.append(piece)
    return wanted


MAX_IDLE_LANES = 64
"""Lanes of one model that are kept without anything waiting."""


class BatchObserver(Protocol):
    """Records waiting rows and batches, e.g. for ``braid.server.observability.series.requests``."""

    def queue_is(self, requests: int, rows: int) -> None:
        """Record the requests and rows that wait now."""

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        """Record a batch that ended well."""


class Level:
    """Waiting tickets of one priority, by number, in order of arrival."""

    def __init__(self) -> None:
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        self.rows = 0


class Lane:
    """Waiting tickets that may share batches, and the latencies of these."""

    def __init__(self, table: LatencyTable) -> None:
        self.table = table
        self.plan = CompletionPlan(table)
        self.rows = 0
        self._levels: dict[int, Level] = {}  # by priority, ascending; none is empty

    def add(self, number: int, ticket: Ticket) -> None:
        priority = ticket.request.priority
        if priority not in self._levels:
            self._levels[priority] = Level()
            self._levels = dict(sorted(self._levels.items()))
        self._levels[priority].tickets[number] = ticket
        self.count(ticket, ticket.rows_left)

    def remove(self, number: int, ticket: Ticket) -> None:
        """Take out a ticket with all of its rows that wait."""
        priority = ticket.request.priority
        self.count(ticket, -ticket.rows_left)
        del self._levels[priority].tickets[number]
        if not self._levels[priority].tickets:
            del self._levels[priority]

    def count(self, ticket: Ticket, rows: int) -> None:
        """Count ``rows`` more of a ticket; fewer if negative."""
        self.rows += rows
        self._levels[ticket.request.priority].rows += rows

    @property
    def head(self) -> tuple[int, int]:
        priority, level = next(iter(self._levels.items()))
        return priority, next(iter(level.tickets))

    @property
    def first(self) -> Ticket | None:
        """First ticket in order; None: the lane is empty."""
        for level in self._levels.values():
            return next(iter(level.tickets.values()))
        return None

    @property
    def requests(self) -> int:
        return sum(len(level.tickets) for level in self._levels.values())

    def rows_before(self, priority: int) -> int:
        return sum(level.rows for other, level in self._levels.items() if other <= priority)


class ModelQueue:
    """Waiting requests of one model on one device."""

    def __init__(self, model: ModelReplica, observer: BatchObserver) -> None:
        self.model = model
        self.observer = observer
        self.arrivals = ArrivalRate()
        self.rows = 0
        self.requests = 0  # none of whose rows has been taken yet
        self.used_s = 0.0  # device time by share: the queue with the least goes first
        self._numbers = count()
        self._places: dict[Ticket, tuple[int, Lane]] = {}
        self._lanes: OrderedDict[Hashable, Lane] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        return not self._places

    def lane(self, key: Hashable) -> Lane:
        """Return the lane that ``ModelReplica.lane_of`` says, with its latency table."""
        lane = self._lanes.get(key)
        if lane is None:
            self._forget_idle_lanes()
            lane = self._lanes[key] = Lane(self.model.latencies(key))
        self._lanes.move_to_end(key)
        return lane

    def add(self, ticket: Ticket) -> None:
        number, lane = next(self._numbers), self.lane(ticket.lane)
        lane.add(number, ticket)
        self._places[ticket] = (number, lane)
        self.rows += ticket.rows_left
        self.requests += 1

    def discard(self, ticket: Ticket) -> bool:
        """Take out a ticket that ended; returns True if rows of the ticket still waited."""
        place = self._places.pop(ticket, None)
        if place is None:
            return False
        number, lane = place
        lane.remove(number, ticket)
        self.rows -= ticket.rows_left
        self.requests -= ticket.next_row == 0
        return True

    def next_lane(self) -> Lane:
        """Return the lane of the first ticket. The queue is not empty."""
        return min((lane for lane in self._lanes.values() if lane.rows), key=lambda lane: lane.head)

    def side_by_side(self, lane: Lane) -> Sequence[Lane]:
        """Return the lanes in which rows wait whose batches may run beside this one's, and it."""
        if not lane.table.beside:
            return [lane]
        return [other for other in self._lanes.values() if other.rows and other.table.beside]

    def take(self, lane: Lane, size: int, now: float) -> list[Piece]:
        """Take the next rows of a lane for one batch, at most ``size``; late tickets end here."""
        taken: list[Piece] = []
        room = size
        while room and (ticket := lane.first):
            if ticket.has_ended or ticket.is_late(now):
                ticket.expire()
                self.discard(ticket)
            else:
                rows = min(ticket.rows_left, room)
                taken.append(self._take(lane, ticket, rows))
                room -= rows
        return taken

    def tell(self) -> None:
        self.observer.queue_is(self.requests, self.rows)

    def _take(self, lane: Lane, ticket: Ticket, rows: int) -> Piece:
        """Cut ``rows`` rows off the lane's first ticket."""
        self.requests -= ticket.next_row == 0
        self.rows -= rows
        if rows == ticket.rows_left:
            number, _ = self._places.pop(ticket)
            lane.remove(number, ticket)
        else:
            lane.count(ticket, -rows)
        return ticket.take(rows)

    @property
    def lanes(self) -> Iterable[Lane]:
        return self._lanes.values()

    def _forget_idle_lanes(self) -> None:
        idle = [key for key, lane in self._lanes.items() if not lane.rows]
        for key in idle[: max(0, len(idle) - MAX_IDLE_LANES)]:
            del self._lanes[key]


@dataclass(slots=True, eq=False)
class Batch:
    """Pieces of one shape class that are sent to the device together."""

    queue: ModelQueue
    lane: Lane
    pieces: Sequence[Piece]
    size: int
    expected_s: float
    sent_at: float  # by the batcher's clock
    was_idle: bool  # its part of the device had nothing else to do
    beside: int = 1  # batches that the device runs side by side, this one among them
    has_waited: bool = False  # for its executable

    def share_of(self, seconds: float) -> float:
        """Device time by share for a batch that takes so many seconds on its part of the device."""
        return seconds / self.beside / self.queue.model.policy.share
