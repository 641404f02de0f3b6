"""Memory of messages, from their first byte until their handlers have ended.

A message that is longer than the window of its stream is let in as a whole, so that whoever is let
in can finish; so is what a compressed one becomes. Long messages take half of the limit on calls at
most, and those of up to a 32nd of it another eighth, so that they wait for no longer ones. Of each
kind the callers that have the least go first. Short messages have the rest, or SHORT_BYTES.

While a message waits, senders give way that stand still or are slower than PACE, or would take
longer than LONG_S for their message. The others finish and leave their room to those that wait, so
nobody who sends on waits for ever. All is counted in ``CallMemory``, with what calls hold beside
messages. Where the limit is less than one message and SHORT_BYTES, messages hold as much as those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol

from braid.server.http2.messages import READY_BYTES, WINDOW_BYTES, Incoming, NoRoom
from braid.server.inference.call_memory import LOOK_S, PACE, UNREAD_S, CallMemory, ConnectionMemory
from braid.server.inference.callers import Caller

PATIENCE_S: Final = 2.0
"""Time that a sender may be behind its pace while another one waits."""
FEW_BYTES: Final = 1 << 12
LONG_S: Final = 8.0
"""Time that a long message may take while another one waits."""
SHORT_BYTES: Final = 16 << 20
"""Room for short messages, however little all of them may take."""


class Admitting(Protocol):
    """Connection of a stream; told when a message is let in that had to wait."""

    memory: ConnectionMemory
    reserved_bytes: int

    def allow_more(self, arrival: Arrival) -> None:
        """Let the peer send on."""


@dataclass(slots=True, eq=False)
class Arrival:
    """Messages of one stream: what its peer has sent of them, and the one that its handler has."""

    connection: Admitting
    incoming: Incoming
    number: int  # of the stream
    caller: Caller = field(init=False)
    held_bytes: int = 0  # as counted
    handled_bytes: int = 0  # of the message that the handler has
    reserved: int = 0  # bytes of long messages that were let in, and not handed over
    entering: asyncio.Future[None] | None = None  # waits for room to decompress
    is_unread: bool = False  # the long message is whole, and its handler has not taken it
    since: float = 0.0  # when the peer began to send what is held; 0.0: nothing is
    got_bytes: int = 0  # what it has sent since then

    def __post_init__(self) -> None:
        self.caller = self.connection.memory.caller

    def behind_s(self, now: float) -> float:
        pace = max(PACE, self.reserved / LONG_S)
        return now - self.since - self.got_bytes / pace if self.since else 0.0

    def begin(self, now: float) -> None:
        self.since, self.got_bytes = now, 0

    @property
    def long_bytes(self) -> int:
        """Bytes of the handler's message that count as a long one."""
        return self.handled_bytes if self.handled_bytes > WINDOW_BYTES else 0


class Arrivals:
    """Messages of all connections. Belongs to the event loop."""

    def __init__(self, memory: CallMemory, now: Callable[[], float] = monotonic) -> None:
        self.memory = memory
        self.held_bytes = 0
        self._limits = memory.limits
        self._now = now
        self._reserved = 0  # of long messages, handlers' ones too
        self._all: set[Arrival] = set()  # that hold something
        self._waiting: dict[Arrival, int] = {}  # bytes wanted, the longest first
        self._alarm: asyncio.TimerHandle | None = None

    def count(self, arrival: Arrival, more_bytes: int) -> None:
        """Count bytes that are about to be received; a few are counted once they are there."""
        arrival.got_bytes += more_bytes
        if more_bytes > FEW_BYTES and not arrival.incoming.is_reserved:
            self._change(arrival, arrival.held_bytes + more_bytes)

    def settle(self, arrival: Arrival) -> None:
        held_bytes = arrival.incoming.held_bytes
        if not held_bytes:
            arrival.since = 0.0
        elif not arrival.since:
            arrival.since, arrival.got_bytes = self._now(), held_bytes
        if arrival.reserved and arrival.incoming.ready and not arrival.is_unread:
            arrival.is_unread = True
            arrival.begin(self._now() + UNREAD_S)
        held_bytes += arrival.handled_bytes
        if held_bytes != arrival.held_bytes:
            self._change(arrival, held_bytes)

    def admit(self, arrival: Arrival) -> bool:
        """Let in a long message; returns True if it may come now."""
        is_open = not arrival.incoming.is_reserved and not arrival.reserved  # one at a time
        if is_open and arrival not in self._waiting:
            self._wait(arrival, arrival.incoming.body_bytes)
        return arrival.incoming.is_reserved

    async def enter(self, arrival: Arrival, size_bytes: int) -> None:
        """Return when there is room for a message that is decompressed, or it was given up."""
        entered = arrival.entering = asyncio.get_running_loop().create_future()
        self._wait(arrival, size_bytes)
        await entered

    def taken(self, arrival: Arrival, size_bytes: int) -> None:
        """Count a message as its handler's."""
        arrival.since, arrival.is_unread = 0.0, False
        arrival.handled_bytes = size_bytes + READY_BYTES
        if arrival.reserved or size_bytes > WINDOW_BYTES:
            self._reserve(arrival, arrival.long_bytes - arrival.reserved)
            arrival.reserved = 0
        held_bytes = arrival.incoming.held_bytes + arrival.handled_bytes
        if held_bytes != arrival.held_bytes:
            self._change(arrival, held_bytes)

    def free(self, arrival: Arrival) -> None:
        """Count a message no more that its handler has had."""
        long_bytes, arrival.handled_bytes = arrival.long_bytes, 0
        self.settle(arrival)
        if long_bytes:
            self._reserve(arrival, -long_bytes)

    def leave(self, arrival: Arrival) -> None:
        if arrival.handled_bytes > WINDOW_BYTES:
            self.free(arrival)
        arrival.handled_bytes = 0
        self._drop(arrival)

    def _drop(self, arrival: Arrival) -> None:
        """Count nothing of what a peer has sent; its handler's message still counts."""
        if arrival.held_bytes != arrival.handled_bytes:
            self._change(arrival, arrival.handled_bytes)
        if arrival in self._waiting:
            del self._waiting[arrival]
            self._admit_waiting()
        if arrival.reserved:
            self._reserve(arrival, -arrival.reserved)
            arrival.reserved, arrival.is_unread = 0, False
        if arrival.entering is not None:
            self._enter(arrival.entering)

    def _enter(self, entering: asyncio.Future[None]) -> None:
        if not entering.done():
            entering.set_result(None)

    def _change(self, arrival: Arrival, held_bytes: int) -> None:
        more, arrival.held_bytes = held_bytes - arrival.held_bytes, held_bytes
        self.held_bytes += more
        if not held_bytes:
            self._all.discard(arrival)
        elif more == held_bytes:  # the first of them
            self._all.add(arrival)
        memory = self.memory
        memory.held_bytes += more
        if more > 0:
            if memory.held_bytes > self._limits.all_bytes:
                self._make_room()
        elif memory.waiting or memory.on_room:
            memory.let_in()

    def _make_room(self) -> None:
        """Give up the messages whose senders are furthest behind, until an eighth is free."""
        limit = self._limits.all_bytes
        others = self.memory.held_bytes - self.held_bytes
        most = max(limit - others, self._reserved + max(limit // 4, SHORT_BYTES))
        if self.held_bytes <= most:
            return
        now, enough = self._now(), most - limit // 8
        for arrival in sorted(self._all, key=lambda sender: sender.behind_s(now), reverse=True):
            if self.held_bytes <= enough:
                break
            if arrival.held_bytes > arrival.handled_bytes:
                self._give_up(arrival)

    def _give_up(self, arrival: Arrival) -> None:
        arrival.incoming.give_up(
            NoRoom(
                "this message came too slowly while memory for messages was short; send it again, "
                "or let the server hold more (BRAID_CALLS_MEMORY_BYTES)"
            )
        )
        self._drop(arrival)

    def _is_large(self, size_bytes: int) -> bool:
        return size_bytes > self._limits.all_bytes // 32

    def _fits_all(self, arrival: Arrival, size_bytes: int) -> bool:
        limit, others = self._limits.all_bytes, self._reserved - arrival.reserved
        most = limit // 2 if self._is_large(size_bytes) else limit * 5 // 8
        return not others or (
            others + size_bytes <= most and self.memory.held_bytes + size_bytes <= limit
        )

    def _fits_connection(self, arrival: Arrival, size_bytes: int) -> bool:
        held = arrival.connection.reserved_bytes - arrival.reserved
        return not held or held + size_bytes <= self._limits.connection_bytes

    def _let_in(self, arrival: Arrival, size_bytes: int) -> None:
        arrival.reserved += size_bytes
        self._reserve(arrival, size_bytes)
        if arrival.entering is not None:
            self._enter(arrival.entering)
            arrival.entering = None
            return
        arrival.incoming.is_reserved = True
        arrival.begin(self._now())
        self._change(arrival, arrival.incoming.held_bytes + arrival.handled_bytes)
        arrival.connection.allow_more(arrival)

    def _reserve(self, arrival: Arrival, more_bytes: int) -> None:
        self._reserved += more_bytes
        arrival.caller.reserved_bytes += more_bytes
        arrival.connection.reserved_bytes += more_bytes
        if more_bytes < 0:
            self._admit_waiting()

    def _wait(self, arrival: Arrival, size_bytes: int) -> None:
        self._waiting[arrival] = size_bytes
        self._admit_waiting()
        self._look_soon()

    def _admit_waiting(self) -> None:
        """Let in those that wait, of each kind up to the first that all leave no room for."""
        full = set[bool]()
        order = sorted(
            self._waiting.items(),
            key=lambda item: (item[0].caller.reserved_bytes, item[0].connection.reserved_bytes),
        )
        for arrival, size_bytes in order:
            kind = self._is_large(size_bytes)
            if kind in full or arrival not in self._waiting:
                continue
            if not self._fits_all(arrival, size_bytes):
                full.add(kind)
            elif self._fits_connection(arrival, size_bytes):
                del self._waiting[arrival]
                self._let_in(arrival, size_bytes)
        self.memory.on_room = self._admit_waiting if self._waiting else None

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
                waiting.connection is arrival.connection or not self._fits_all(waiting, size_bytes)
                for waiting, size_bytes in self._waiting.items()
            ):
                self._give_up(arrival)
        self._look_soon()
