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
from braid.server.http2.streams import HttpStream

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
        self._inflating = asyncio.Lock()

    def received(self, stream: HttpStream | None, length: int) -> None:
        """Count received bytes of a frame of DATA; ``stream`` is None for no call.

        Raises:
            ConnectionFault: there are more than a window has room for.
        """
        self._window -= length
        if stream is not None:
            stream.incoming.window -= length
        if self._window < 0 or (stream is not None and stream.incoming.window < 0):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window was sent")
        if self._window <= CONNECTION_WINDOW_BYTES // 2:
            more, self._window = CONNECTION_WINDOW_BYTES - self._window, CONNECTION_WINDOW_BYTES
            self._sender.control(number_frame(frames.WINDOW_UPDATE, 0, more))
        if stream is not None and stream.incoming.failure is None:
            if stream.arrival is None:
                stream.arrival = Arrival(self, stream.incoming, stream.outgoing.number)
            self._arrivals.count(stream.arrival, length)

    def allow_more(self, arrival: Arrival) -> None:
        """Let the peer send on, unless a message waits to be read or for room."""
        incoming = arrival.incoming
        self._arrivals.settle(arrival)
        if incoming.ready or incoming.has_ended or incoming.failure is not None:
            return
        if incoming.body_bytes > WINDOW_BYTES and not self._arrivals.admit(arrival):
            self._arrivals.settle(arrival)
            return
        wanted = max(WINDOW_BYTES, incoming.missing_bytes)
        if incoming.window <= wanted // 2:
            more, incoming.window = wanted - incoming.window, wanted
            self._sender.control(number_frame(frames.WINDOW_UPDATE, arrival.number, more))

    def admitted(self, arrival: Arrival) -> None:
        """Let the peer send the message that had to wait."""
        self.allow_more(arrival)

    async def next(self, stream: HttpStream) -> Message | None:
        """Return the next message of a call, once its handler may hold it; None: the last was.

        Raises:
            TooLarge, BadMessage, NoRoom: there is a message that cannot be had.
        """
        if stream.handled_bytes:
            self.free(stream)
        incoming = stream.incoming
        if not incoming.ready and not await incoming.arrived():
            return None
        if incoming.is_compressed or len(incoming.ready[0]) > WINDOW_BYTES:
            message = await self._long(stream)
        else:
            message = await incoming.take()
        if stream.arrival is not None:
            self._arrivals.taken(stream.arrival)
            if not (incoming.has_ended or stream.outgoing.has_ended):
                self.allow_more(stream.arrival)
        return message

    async def _long(self, stream: HttpStream) -> Message:
        """Return the next message, which may be long, or is once it is decompressed."""
        async with self._turn(stream.incoming):
            size_bytes = await stream.incoming.measure()
        if size_bytes > WINDOW_BYTES:
            await self._handled.enter(size_bytes, None)
            stream.handled_bytes = size_bytes
        async with self._turn(stream.incoming):
            return await stream.incoming.take()

    def _turn(self, incoming: Incoming) -> AbstractAsyncContextManager[None]:
        """Return what to hold while the next message is decompressed, if it is."""
        return self._inflating if incoming.is_compressed else _NO_TURN

    def free(self, stream: HttpStream) -> None:
        """Count the message no more that a handler has had."""
        self._handled.free(stream.handled_bytes)
        stream.handled_bytes = 0

    def ended(self, stream: HttpStream) -> None:
        """Count nothing of a stream."""
        if stream.handled_bytes:
            self.free(stream)
        if stream.arrival is not None:
            self._arrivals.leave(stream.arrival)
