"""Windows for what one peer sends, and the messages of its calls until their handlers have them.

    DATA ──received──> windows ──allow_more──> WINDOW_UPDATE
                                    └── a long message: once ``Arrivals`` have room for it
    handler ──next──> a whole message, counted from now on as its handler's

Windows are large, so that a tensor comes without a pause. A stream's window is let in at once; a
message that is longer waits for room.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from braid.server.http2 import frames
from braid.server.http2.arrivals import Arrival, Arrivals
from braid.server.http2.frames import ConnectionFault, ErrorCode, number_frame
from braid.server.http2.messages import WINDOW_BYTES, Incoming, Message
from braid.server.http2.sending import Sender

CONNECTION_WINDOW_BYTES: Final = 16 << 20

_NO_TURN: Final = nullcontext()


class FlowControl:
    """Bounds of one connection's messages. Belongs to the event loop."""

    def __init__(self, sender: Sender, arrivals: Arrivals, peer: str) -> None:
        self.reserved_bytes = 0  # of long messages that were let in
        self._sender = sender
        self._arrivals = arrivals
        self._handled = arrivals.handled.connection(peer)
        self._window = CONNECTION_WINDOW_BYTES
        self._arriving: dict[int, Arrival] = {}  # by stream
        self._inflating = asyncio.Lock()
        self._taken: dict[int, int] = {}  # bytes of the message that a stream's handler has

    def received(self, incoming: Incoming | None, number: int, length: int) -> None:
        """Count received bytes of a frame of DATA; ``incoming`` is None for no call.

        Raises:
            ConnectionFault: there are more than a window has room for.
        """
        self._window -= length
        if incoming is not None:
            incoming.window -= length
        if self._window < 0 or (incoming is not None and incoming.window < 0):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window was sent")
        if self._window <= CONNECTION_WINDOW_BYTES // 2:
            more, self._window = CONNECTION_WINDOW_BYTES - self._window, CONNECTION_WINDOW_BYTES
            self._sender.control(number_frame(frames.WINDOW_UPDATE, 0, more))
        if incoming is not None and incoming.failure is None:
            arrival = self._arriving.get(number)
            if arrival is None:
                arrival = self._arriving[number] = Arrival(self, incoming, number)
            self._arrivals.count(arrival, length)

    def allow_more(self, incoming: Incoming, number: int) -> None:
        """Let the peer send on, unless a message waits to be read or for room."""
        arrival = self._arriving.get(number)
        if arrival is not None:
            self._arrivals.settle(arrival)
        if incoming.ready or incoming.has_ended or incoming.failure is not None:
            return
        if incoming.body_bytes > WINDOW_BYTES:
            assert arrival is not None
            if not self._arrivals.admit(arrival):
                self._arrivals.settle(arrival)
                return
        wanted = max(WINDOW_BYTES, incoming.missing_bytes)
        if incoming.window <= wanted // 2:
            more, incoming.window = wanted - incoming.window, wanted
            self._sender.control(number_frame(frames.WINDOW_UPDATE, number, more))

    def admitted(self, arrival: Arrival) -> None:
        """Let the peer send the message that had to wait."""
        self.allow_more(arrival.incoming, arrival.number)

    async def next(self, incoming: Incoming, number: int) -> Message | None:
        """Return the next message of a call, once its handler may hold it; None: the last was.

        Raises:
            TooLarge, BadMessage, NoRoom: there is a message that cannot be had.
        """
        self.free(number)
        if not await incoming.arrived():
            return None
        async with self._turn(incoming):
            size_bytes = await incoming.measure()
        if size_bytes > WINDOW_BYTES:
            await self._handled.enter(size_bytes, None)
            self._taken[number] = size_bytes
        async with self._turn(incoming):
            message = await incoming.take()
        if arrival := self._arriving.get(number):
            self._arrivals.taken(arrival)
        return message

    def _turn(self, incoming: Incoming) -> AbstractAsyncContextManager[None]:
        """Return what to hold while the next message is decompressed, if it is."""
        return self._inflating if incoming.is_compressed else _NO_TURN

    def free(self, number: int) -> None:
        """Count the message no more that a handler has had."""
        if taken := self._taken.pop(number, 0):
            self._handled.free(taken)

    def ended(self, number: int) -> None:
        """Count nothing of a stream."""
        self.free(number)
        if arrival := self._arriving.pop(number, None):
            self._arrivals.leave(arrival)
