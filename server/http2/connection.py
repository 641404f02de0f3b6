"""One connection of HTTP/2: its streams, settings, pings and limits (RFC 9113).

    socket ──Receiver──> frames ──> headers: a call begins │ data, resets: to the call
    socket <──Sender──── answers of calls, settings, pings

Windows for what peers send are large, so that a tensor comes without a pause; what a call holds is
bounded by the limit on messages, and by its window while nobody reads it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final

from braid.server.http2 import frames
from braid.server.http2.bounds.intake import CONNECTION_WINDOW_BYTES, Intake
from braid.server.http2.bounds.keepalive import KeepAlive
from braid.server.http2.bounds.patience import BYTES_PER_FRAME, Patience
from braid.server.http2.bounds.turns import Turns
from braid.server.http2.frames import ConnectionFault, ErrorCode, frame, number_frame
from braid.server.http2.headers.reading import MAX_HEADER_BYTES, Block, HeaderBlocks
from braid.server.http2.messages import WINDOW_BYTES, Incoming
from braid.server.http2.receiving import DATA_FRAME_BYTES, Receiver
from braid.server.http2.sending import Sender
from braid.server.http2.streams import CallOfStream, ConnectionLimits, ConnectionStreams, HttpStream
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.logs import Seldom

log = logging.getLogger("braid.rpc")

LOG_SECONDS: Final = 60.0
_seldom: Final = Seldom(LOG_SECONDS)  # of all connections: anybody can make one


class HttpConnection(asyncio.BufferedProtocol):
    """Protocol of one connection. Belongs to the event loop."""

    def __init__(
        self,
        limits: ConnectionLimits,
        memory: CallMemory,
        turns: Turns,
        begin: Callable[[HttpConnection, HttpStream], CallOfStream],
    ) -> None:
        """Wait for calls.

        Args:
            limits: of this connection.
            memory: of messages on their way in, of all connections.
            turns: of reading, of all connections.
            begin: begins a call.
        """
        self.peer = ""
        self.sender = Sender()
        self.on_made: Callable[[HttpConnection], object] = lambda _: None
        self.on_closed: Callable[[HttpConnection], object] = lambda _: None
        self._limits = limits
        self._memory = memory
        self._turns = turns
        self._unread_bytes = 0  # received, to be read in a later turn
        self._receiver = Receiver(self)
        self._blocks = HeaderBlocks()
        self._patience = Patience(self.sender, limits.streams)
        self._streams = ConnectionStreams(limits, self.sender, self._patience, partial(begin, self))
        self._is_left = False  # the peer broke the protocol
        self._intake: Intake  # once it is known who the peer is
        self._keepalive = KeepAlive(self.sender, limits.keepalive_s, limits.answer_s)

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Greet the peer."""
        self.sender.transport = transport
        self.peer = _name(transport.get_extra_info("peername"))
        self._intake = Intake(self.sender, self._memory.connection(self.peer))
        settings = {
            frames.MAX_CONCURRENT_STREAMS: self._limits.streams,
            frames.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            frames.MAX_FRAME_SIZE: DATA_FRAME_BYTES,
            frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
        more = CONNECTION_WINDOW_BYTES - frames.USUAL_WINDOW_BYTES
        growth = number_frame(frames.WINDOW_UPDATE, 0, more)
        self.sender.control(frames.settings_frame(settings) + growth)
        self._keepalive.start()
        self.on_made(self)

    def connection_lost(self, _: Exception | None) -> None:
        """End all calls."""
        self._streams.is_closing = True
        self._keepalive.stop()
        self._streams.leave_all()
        self.sender.wake()
        self.on_closed(self)

    def get_buffer(self, _: int) -> memoryview:
        """Return where the next bytes are received."""
        return self._receiver.place()

    def buffer_updated(self, size_bytes: int) -> None:
        """Read what was received, or in a later turn of the event loop."""
        self._keepalive.heard_at = now = monotonic()
        if self._turns.has_time(now):
            self._read(size_bytes)
            return
        self._unread_bytes = size_bytes
        self.sender.transport.pause_reading()
        self._turns.wait(self)

    def read_on(self) -> None:
        """Read what was received in an earlier turn."""
        if self.sender.transport.is_closing():
            return
        if not self._turns.has_time(monotonic()):
            self._turns.wait(self)
            return
        self._read(self._unread_bytes)
        if not self.sender.transport.is_closing():
            self.sender.transport.resume_reading()

    def _read(self, size_bytes: int) -> None:
        if self._is_left:
            return
        try:
            self._receiver.received(size_bytes)
        except ConnectionFault as fault:
            self._give_up(fault)
        except Exception as error:  # a bug, or no memory: of this connection alone
            held_back = _seldom.passes()
            if held_back is not None:
                facts = {"peer": self.peer, "not_logged": held_back}
                log.error("a connection fails", exc_info=error, extra=facts)
            self._give_up(ConnectionFault(ErrorCode.INTERNAL_ERROR, "internal error"))

    def _give_up(self, fault: ConnectionFault) -> None:
        """Tell the peer why its connection ends, and end all calls.

        What still comes is dropped for a moment: to close at once would reset the connection, and
        the peer might not read why.
        """
        self._streams.is_closing = self._is_left = True
        self._receiver.forget()
        self.sender.leave_with(frames.goaway_frame(self._streams.last, fault.code, str(fault)))
        self._streams.leave_all()
        self._keepalive.end_soon()

    def pause_writing(self) -> None:
        """Hold back what is to be sent."""
        self.sender.pause()

    def resume_writing(self) -> None:
        """Send on."""
        self.sender.resume()

    # -- what the server and its calls do -----------------------------------------------------

    def close(self) -> None:
        """Take no more calls; close when those under way have ended."""
        if not self._streams.is_closing:
            self._streams.is_closing = True
            self.sender.control(frames.goaway_frame(self._streams.last, ErrorCode.NO_ERROR))
            if self.is_idle:
                self.sender.transport.close()

    def abort(self) -> None:
        """Close now."""
        self.sender.transport.abort()

    def allow_more(self, stream: HttpStream) -> None:
        """Let the peer send on, unless a message waits to be read."""
        if not stream.outgoing.has_ended:
            self._intake.allow_more(stream.incoming, stream.outgoing.number)

    def taken(self, stream: HttpStream) -> None:
        """Hold the last message that was read for its handler no more."""
        self._intake.taken(stream.incoming, stream.outgoing.number)

    @property
    def is_idle(self) -> bool:
        """Bool: no call is under way."""
        return not self._streams.running

    def answered(self, stream: HttpStream) -> None:
        """Count a call no more: its caller may know its status, and begin the next call."""
        self._streams.answered(stream)

    def ended(self, stream: HttpStream) -> None:
        """Forget a call that has ended; its caller hears so if its status was not sent."""
        self._streams.ended(stream)
        self._intake.ended(stream.outgoing.number)
        if self._streams.is_closing and self.is_idle and not self._is_left:
            self.sender.transport.close()

    # -- frames -------------------------------------------------------------------------------

    def begin_data(self, number: int, length: int, padding: int) -> Incoming | None:
        """Count received bytes, with their padding; returns the messages that they are for."""
        self._blocks.check(frames.DATA)
        stream = self._streams.get(number)
        if not 0 < number <= self._streams.last or (stream and stream.incoming.has_ended):
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "data without headers, or after the end")
        incoming = None if stream is None else stream.incoming
        self._intake.received(incoming, length)
        if length > padding:
            self._patience.earn(length // BYTES_PER_FRAME)
        else:
            self._patience.spend()
        return incoming

    def end_data(self, number: int, is_last: bool) -> None:
        """Let the peer send on, or tell the call that this was the last of it."""
        stream = self._streams.get(number)
        if stream is not None:
            if is_last:
                stream.incoming.end()
            else:
                self.allow_more(stream)

    def take_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Handle a frame."""
        if not self._keepalive.has_greeted and kind != frames.SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings come first")
        self._blocks.check(kind)
        if kind not in _COUNTED_LATER:
            self._patience.spend()
        handle = _HANDLERS.get(kind)  # none: GOAWAY, PRIORITY, unknown ones
        if handle is not None:
            handle(self, flags, number, payload)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        self._open(number, self._blocks.begin(flags, number, payload))

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        self._open(number, self._blocks.go_on(flags, number, payload))

    def _open(self, number: int, read: Block | None) -> None:
        """Begin the call of a stream, from its headers."""
        if read is None:
            return
        fields, is_last = read
        if number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients open streams of odd numbers")
        if number > self._streams.last:
            self._streams.open(number, fields, is_last, self._keepalive.heard_at)
            return
        self._patience.spend()  # trailers, which mean nothing to gRPC, or a late frame
        if is_last:
            self.end_data(number, is_last)

    def _rst_stream(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != 4 or not 0 < number <= self._streams.last:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a reset is malformed")
        self._streams.reset(number, self._keepalive.heard_at)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings are malformed")
        if flags & frames.ACK:
            return
        self._keepalive.has_greeted = True
        for name, value in dict(struct.iter_unpack("!HI", payload)).items():  # the last ones count
            if name == frames.INITIAL_WINDOW_SIZE:
                self.sender.begin_with(value)
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.USUAL_FRAME_BYTES <= value < 1 << 24:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame size is wrong")
                self.sender.frame_bytes = value
        self.sender.control(frame(frames.SETTINGS, frames.ACK, 0))

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a ping is malformed")
        if not flags & frames.ACK:
            self.sender.control(frame(frames.PING, frames.ACK, 0, payload))

    def _window_update(self, _: int, number: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & frames.MAX_WINDOW_BYTES
        if len(payload) != 4 or not more or number > self._streams.last:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window update is malformed")
        stream = self._streams.get(number)
        if not number:
            self.sender.grow(None, more)
        elif stream is not None:
            self.sender.grow(stream.outgoing, more)

    def _push_promise(self, *_: object) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients promise nothing")


_COUNTED_LATER: Final = (frames.HEADERS, frames.CONTINUATION, frames.RST_STREAM)
"""Frames that count by what they begin or end."""

_HANDLERS: Final[dict[int, Callable[[HttpConnection, int, int, bytes], None]]] = {
    frames.HEADERS: HttpConnection._headers,
    frames.CONTINUATION: HttpConnection._continuation,
    frames.RST_STREAM: HttpConnection._rst_stream,
    frames.SETTINGS: HttpConnection._settings,
    frames.PUSH_PROMISE: HttpConnection._push_promise,
    frames.PING: HttpConnection._take_ping,
    frames.WINDOW_UPDATE: HttpConnection._window_update,
}


def _name(address: Any) -> str:
    """Name of a peer as gRPC writes it."""
    if not isinstance(address, tuple):
        return "unknown:"  # it has left already
    host, port = address[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
