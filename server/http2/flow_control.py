"""Windows for what one peer sends, and the messages of its calls until their handlers have them.

Windows are large, so that a tensor comes without a pause. A stream's window is let in at once; a
message that is longer waits for room.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from braid.server.http2 import frames
from braid.server.http2.arrivals import Arrival, Arrivals
from braid.server.http2.frames import ConnectionFault, ErrorCode, number_frame
from braid.server.http2.messages import WINDOW_BYTES, Message
from braid.server.http2.sending import Sender
from braid.server.http2.streams import HttpStream
from braid.server.inference.call_memory import ConnectionMemory

CONNECTION_WINDOW_BYTES: Final = 16 << 20
FREE_BYTES: Final = 1 << 14
"""Messages up to this size may count until their calls have ended."""


@dataclass(slots=True, eq=False)
class FlowControl:
    """Bounds of one connection's messages. Belongs to the event loop."""

    _sender: Sender
    _arrivals: Arrivals
    memory: ConnectionMemory
    reserved_bytes: int = 0  # of long messages that were let in
    _window: int = CONNECTION_WINDOW_BYTES
    _inflating: asyncio.Lock = field(default_factory=asyncio.Lock)

    def received(self, stream: HttpStream | None, length: int) -> None:
        """Count bytes of DATA (``stream`` None: of no call). ConnectionFault: beyond the window."""
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

    async def next(self, stream: HttpStream) -> Message | None:
        """Return the next message of a call, once its handler may hold it; None: the last was.

        Raises TooLarge, BadMessage, NoRoom: there is a message that cannot be had.
        """
        if stream.arrival is not None and stream.arrival.handled_bytes:
            self._arrivals.free(stream.arrival)
        incoming = stream.incoming
        if not incoming.ready and not await incoming.arrived():
            return None
        arrival = stream.arrival
        assert arrival is not None
        if incoming.is_compressed:
            message = await self._decompressed(arrival)
        else:
            message = await incoming.take()
        self._arrivals.taken(arrival, len(message))
        if not (incoming.has_ended or stream.outgoing.has_ended):
            self.allow_more(arrival)
        return message

    async def _decompressed(self, arrival: Arrival) -> Message:
        """Return the next message; one at a time is decompressed of a connection, and caller."""
        turn = self.memory.caller.inflating
        arrival.since = 0.0  # it is not the peer that keeps it waiting
        async with self._inflating, turn:
            size_bytes = await arrival.incoming.measure()
        if size_bytes > WINDOW_BYTES:
            await self._arrivals.enter(arrival, size_bytes)
        async with self._inflating, turn:
            return await arrival.incoming.take()

    def close(self, stream: HttpStream) -> None:
        if stream.incoming.ready or not stream.incoming.has_ended:
            stream.incoming.drop()
            if stream.arrival is not None:
                self._arrivals.settle(stream.arrival)

    def free(self, stream: HttpStream) -> None:
        """Count a message no more that a handler has had; a small one goes with its call."""
        if stream.arrival is not None and stream.arrival.handled_bytes > FREE_BYTES:
            self._arrivals.free(stream.arrival)

    def ended(self, stream: HttpStream) -> None:
        if stream.arrival is not None:
            self._arrivals.leave(stream.arrival)
