"""One request on its way through the batcher, and the rows that ride in one batch.

    submit ──> Ticket ──take──> Piece ──batch──> InferenceResult ──deliver──> Ticket.result
                  └─take──> Piece ──batch──> InferenceResult ───┘

A ticket ends exactly once: by its result, an error, its deadline, or its caller going away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from braid.core.errors import DeadlineExceeded
from braid.server.inference.requests import CheckedRequest, InferenceResult


@dataclass(slots=True, eq=False)
class Ticket:
    """Request from its acceptance to its end."""

    request: CheckedRequest
    deadline: float | None  # by the batcher's clock
    accepted_at: float  # by the batcher's clock
    accepted_ns: int  # time.perf_counter_ns()
    result: asyncio.Future[InferenceResult]
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
        """Bool: the request has its result, or its caller has left."""
        return self.result.done()

    def is_late(self, now: float) -> bool:
        """Return whether the deadline has passed; ``now`` by the batcher's clock."""
        return self.deadline is not None and self.deadline <= now

    def take(self, rows: int) -> Piece:
        """Take the next rows for one batch."""
        assert 0 < rows <= self.rows_left
        piece = Piece(self, self.next_row, rows)
        self.next_row += rows
        self.pieces += 1
        return piece

    def deliver(self, piece: Piece, outcome: InferenceResult) -> Sequence[InferenceResult]:
        """Keep a piece's outcome; returns all in order of rows once the last one is kept."""
        self.parts.append((piece.first_row, outcome))
        if self.rows_left or len(self.parts) < self.pieces:
            return ()
        return [part for _, part in sorted(self.parts, key=lambda each: each[0])]

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it has ended."""
        if not self.result.done():
            self.result.set_exception(error)
            self.ended_without_result()

    def close(self) -> None:
        """End without a result unless there is one, and forget the watchers."""
        if self.result.cancel() or self.result.cancelled():
            self.ended_without_result()
        else:
            self.result.exception()  # seen
        self.watchers.clear()  # which know it

    def ended_without_result(self) -> None:
        for watcher in self.watchers:
            watcher()

    def expire(self) -> None:
        self.fail(DeadlineExceeded("the deadline passed while the request was queued or running"))


@dataclass(slots=True, eq=False)
class Piece:
    """Some rows of one request: all of them, or as many as a batch takes."""

    ticket: Ticket
    first_row: int
    rows: int

    @property
    def request(self) -> CheckedRequest:
        return self.ticket.request


def when_all_ended(pieces: Sequence[Piece], then: Callable[[], object]) -> None:
    """Call ``then`` when the last of the pieces to end does so without a result."""

    def look() -> None:
        if all(piece.ticket.has_ended for piece in pieces):
            then()

    for piece in pieces:
        piece.ticket.watchers.append(look)
    look()


def still_wanted(pieces: Sequence[Piece], now: float) -> list[Piece]:
    """Return the pieces that have not ended; late tickets end here.

    Asked right before the device is: a batch may have waited for its turn.
    """
    for piece in pieces:
        if piece.ticket.is_late(now):
            piece.ticket.expire()
    return [piece for piece in pieces if not piece.ticket.has_ended]
