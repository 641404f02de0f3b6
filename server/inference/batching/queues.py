"""Waiting requests of one model: in order of priority, then of arrival, by shape class.

    ModelQueue
      └── lanes: shape class ──> priority ──> tickets in order of arrival

Only requests of one shape class share a batch, so each class is a lane of its own. The lane that
holds the first ticket goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import Protocol

from braid.core.inputs import ShapeClass
from braid.server.inference.batching.batch_sizes import ArrivalRate, CompletionPlan
from braid.server.inference.batching.tickets import Piece, Ticket
from braid.server.inference.latencies import LatencyTable
from braid.server.inference.replica import ModelReplica

MAX_IDLE_LANES = 64
"""Shape classes of one model that are kept without anything waiting."""


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
    """Waiting tickets of one shape class, and the latencies of its batches."""

    def __init__(self, table: LatencyTable) -> None:
        self.table = table
        self.plan = CompletionPlan(table)
        self.rows = 0
        self._levels: dict[int, Level] = {}  # by priority, ascending; none is empty

    def add(self, number: int, ticket: Ticket) -> None:
        """Queue a ticket behind those of its priority."""
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
        """Priority and number of the first ticket; the lane is not empty."""
        priority, level = next(iter(self._levels.items()))
        return priority, next(iter(level.tickets))

    @property
    def first(self) -> Ticket | None:
        """First ticket in order; None: the lane is empty."""
        for level in self._levels.values():
            return next(iter(level.tickets.values()))
        return None

    def rows_before(self, priority: int) -> int:
        """Return the rows that a new ticket of this priority would wait behind."""
        return sum(level.rows for each, level in self._levels.items() if each <= priority)


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
        self._places: dict[Ticket, tuple[int, ShapeClass]] = {}
        self._lanes: OrderedDict[ShapeClass, Lane] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        """Bool: nothing waits."""
        return not self._places

    def lane(self, shape_class: ShapeClass) -> Lane:
        """Return the lane of a shape class, with its latency table."""
        lane = self._lanes.get(shape_class)
        if lane is None:
            self._forget_idle_lanes()
            lane = self._lanes[shape_class] = Lane(self.model.latencies(shape_class))
        self._lanes.move_to_end(shape_class)
        return lane

    def add(self, ticket: Ticket) -> None:
        """Queue a ticket."""
        number, shape_class = next(self._numbers), ticket.request.shape_class
        self.lane(shape_class).add(number, ticket)
        self._places[ticket] = (number, shape_class)
        self.rows += ticket.rows_left
        self.requests += 1

    def discard(self, ticket: Ticket) -> bool:
        """Take out a ticket that ended; returns bool: rows of the ticket still waited."""
        place = self._places.pop(ticket, None)
        if place is None:
            return False
        number, shape_class = place
        self._lanes[shape_class].remove(number, ticket)
        self.rows -= ticket.rows_left
        self.requests -= ticket.next_row == 0
        return True

    def next_lane(self) -> Lane:
        """Return the lane of the first ticket. The queue is not empty."""
        return min((lane for lane in self._lanes.values() if lane.rows), key=lambda each: each.head)

    def take(self, lane: Lane, size: int, now: float) -> list[Piece]:
        """Take the next rows of a lane for one batch, at most ``size``; late tickets end here."""
        taken: list[Piece] = []
        room = size
        while room and (ticket := lane.first):
            if ticket.has_ended or ticket.is_late(now):
                ticket.expire()
                self.discard(ticket)
            elif rows := self._rows_to_take(ticket, room, lane):
                taken.append(self._take(lane, ticket, rows))
                room -= rows
            else:
                break
        return taken

    def first_piece_rows(self, lane: Lane) -> int:
        """Return the least rows of the next batch, so that the first ticket gets on."""
        largest = lane.table.sizes[-1]
        room = 1 if self.model.policy.split_requests else largest
        return self._rows_to_take(lane.first, room, lane) if lane.first else 0

    def tell(self) -> None:
        """Report the waiting requests and rows to the observer."""
        self.observer.queue_is(self.requests, self.rows)

    def _rows_to_take(self, ticket: Ticket, room: int, lane: Lane) -> int:
        """Return the rows of a ticket that fit into ``room``; 0: the ticket waits for a batch."""
        if self.model.policy.split_requests:
            return min(ticket.rows_left, room)
        rows = min(ticket.rows_left, lane.table.sizes[-1])
        return rows if rows <= room else 0

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
        """Lanes of all shape classes, also of those that nothing waits in."""
        return self._lanes.values()

    def _forget_idle_lanes(self) -> None:
        idle = [each for each, lane in self._lanes.items() if not lane.rows]
        for shape_class in idle[: max(0, len(idle) - MAX_IDLE_LANES)]:
            del self._lanes[shape_class]
