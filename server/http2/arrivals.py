"""Memory of messages on their way in: one account for all connections and streams of the process.

    bytes come ──> Arrival, one a stream ──> Arrivals: what all hold ──over the limit──┐
                     └── a long message: room for the whole of it, or it waits         │
    Arrivals ──the sender that is furthest behind──> its message is given up <─────────┘

A message that is longer than the window of its stream is let in as a whole, first come, first
served, so that whoever is let in can finish. Long messages take three quarters of the limit at
most, short ones have the rest, or SHORT_BYTES. While a message waits, senders that stand still or
are slower than PACE give way. The others finish and leave their room to those that wait, so nobody
who sends on waits for ever. All messages together hold the limit at most; where the limit is less
than one message and SHORT_BYTES, they hold as much as those.

A message counts here until its handler takes it. Handlers' messages count in ``handled``, by the
rules of ``CallMemory``, where no sender is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from braid.server.http2.messages import Incoming, NoRoom
from braid.server.inference.call_memory import CallMemory, MemoryLimits

PACE: Final = 1 << 20
"""Bytes a second below which a sender is slow while memory is short."""
PATIENCE_S: Final = 2.0
"""Time that a sender may be behind PACE while another one waits."""
SHORT_BYTES: Final = 16 << 20
"""Room for short messages, however little all of them may take."""
UNREAD_S: Final = 10.0
"""Time that a whole message may wait for its handler while another one waits for room."""
LOOK_S: Final = 0.5
"""Time between two looks at slow senders while somebody waits."""


class Admitting(Protocol):
    """Connection of a stream; hears when a message is let in that had to wait."""

    reserved_bytes: int

    def admitted(self, arrival: Arrival) -> None:
        """Let the peer send on."""


class Arrival:
    """Bytes that one stream has sent and its handler has not taken."""

    __slots__ = (
        "connection",
        "got_bytes",
        "held_bytes",
        "incoming",
        "is_unread",
        "number",
        "reserved",
        "since",
    )  # fmt: skip

    def __init__(self, connection: Admitting, incoming: Incoming, number: int) -> None:
        self.connection = connection
        self.incoming = incoming
        self.number = number  # of the stream
        self.held_bytes = 0  # as counted
        self.reserved = 0  # bytes of the long message that was let in
        self.is_unread = False  # the long message is whole, and its handler has not taken it
        self.since = 0.0  # when the peer began to send what is held; 0.0: nothing is
        self.got_bytes = 0  # what it has sent since then

    def behind_s(self, now: float) -> float:
        """Seconds by which the peer is behind PACE."""
        return now - self.since - self.got_bytes / PACE if self.since else 0.0

    def begin(self, now: float) -> None:
        """Compare the peer with PACE from now on."""
        self.since, self.got_bytes = now, 0


class Arrivals:
    """Messages on their way in, of all connections. Belongs to the event loop."""

    def __init__(self, limits: MemoryLimits, now: Callable[[], float] = monotonic) -> None:
        self.handled = CallMemory(limits)  # messages that handlers hold
        self.held_bytes = 0
        self._limits = limits
        self._now = now
        self._long_limit = limits.all_bytes * 3 // 4
        self._reserved = 0
        self._all: set[Arrival] = set()  # that hold something
        self._waiting: dict[Arrival, int] = {}  # bytes wanted, the longest first
        self._alarm: asyncio.TimerHandle | None = None

    def count(self, arrival: Arrival, more_bytes: int) -> None:
        """Count bytes that are about to be received."""
        arrival.got_bytes += more_bytes
        if not arrival.incoming.is_reserved:
            self._change(arrival, arrival.held_bytes + more_bytes)

    def settle(self, arrival: Arrival) -> None:
        """Count what a stream holds now."""
        held_bytes = arrival.incoming.held_bytes
        if not held_bytes:
            arrival.since = 0.0
        elif not arrival.since:
            arrival.since, arrival.got_bytes = self._now(), held_bytes
        if arrival.reserved and arrival.incoming.ready and not arrival.is_unread:
            arrival.is_unread = True
            arrival.begin(self._now() + UNREAD_S)
        if held_bytes != arrival.held_bytes:
            self._change(arrival, held_bytes)

    def admit(self, arrival: Arrival) -> bool:
        """Let in a long message; returns True if it may come now."""
        is_open = not arrival.incoming.is_reserved and not arrival.reserved  # one at a time
        if is_open and arrival not in self._waiting:
            self._waiting[arrival] = arrival.incoming.body_bytes
            self._admit_waiting()
            self._look_soon()
        return arrival.incoming.is_reserved

    def taken(self, arrival: Arrival) -> None:
        """Count a message no more that its handler has taken."""
        arrival.since = 0.0
        if arrival.reserved:
            self._change(arrival, arrival.incoming.held_bytes)
            self._release(arrival)
        self.settle(arrival)

    def leave(self, arrival: Arrival) -> None:
        """Count nothing of a stream that has ended."""
        if arrival.held_bytes:
            self._change(arrival, 0)
        if arrival.reserved:
            self._release(arrival)
        if arrival in self._waiting:
            del self._waiting[arrival]
            self._admit_waiting()

    def _change(self, arrival: Arrival, held_bytes: int) -> None:
        more, arrival.held_bytes = held_bytes - arrival.held_bytes, held_bytes
        self.held_bytes += more
        if not held_bytes:
            self._all.discard(arrival)
        elif more == held_bytes:  # the first of them
            self._all.add(arrival)
        if more > 0 and self.held_bytes > self._limits.all_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Give up the messages whose senders are furthest behind, until an eighth is free."""
        limit = self._limits.all_bytes
        most = max(limit, self._reserved + max(limit // 4, SHORT_BYTES))
        if self.held_bytes <= most:
            return
        now, enough = self._now(), most - limit // 8
        for arrival in sorted(self._all, key=lambda sender: sender.behind_s(now), reverse=True):
            if self.held_bytes <= enough:
                break
            if arrival.held_bytes:
                self._give_up(arrival)

    def _give_up(self, arrival: Arrival) -> None:
        arrival.incoming.give_up(
            NoRoom(
                "this message came too slowly while memory for messages was short; send it again, "
                "or let the server hold more (BRAID_CALLS_MEMORY_BYTES)"
            )
        )
        self.leave(arrival)

    def _fits_all(self, size_bytes: int) -> bool:
        return not self._reserved or self._reserved + size_bytes <= self._long_limit

    def _fits_connection(self, arrival: Arrival, size_bytes: int) -> bool:
        held = arrival.connection.reserved_bytes
        return not held or held + size_bytes <= self._limits.connection_bytes

    def _let_in(self, arrival: Arrival) -> None:
        arrival.reserved = arrival.incoming.body_bytes
        arrival.incoming.is_reserved = True
        self._reserved += arrival.reserved
        arrival.connection.reserved_bytes += arrival.reserved
        arrival.begin(self._now())
        self._change(arrival, arrival.incoming.held_bytes)

    def _release(self, arrival: Arrival) -> None:
        self._reserved -= arrival.reserved
        arrival.connection.reserved_bytes -= arrival.reserved
        arrival.reserved, arrival.is_unread = 0, False
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Let in those that wait, up to the first that all messages leave no room for."""
        for arrival, size_bytes in list(self._waiting.items()):
            if not self._fits_all(size_bytes):
                break
            if arrival in self._waiting and self._fits_connection(arrival, size_bytes):
                del self._waiting[arrival]
                self._let_in(arrival)
                arrival.connection.admitted(arrival)

    def _look_soon(self) -> None:
        if self._waiting and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Give up long messages that keep others waiting and do not come."""
        self._alarm = None
        now = self._now()
        admitted = (arrival for arrival in self._all if arrival.reserved)
        for arrival in sorted(admitted, key=lambda sender: sender.behind_s(now), reverse=True):
            if arrival.behind_s(now) <= PATIENCE_S:
                break
            if any(
                waiting.connection is arrival.connection or not self._fits_all(size_bytes)
                for waiting, size_bytes in self._waiting.items()
            ):
                self._give_up(arrival)
        self._look_soon()
