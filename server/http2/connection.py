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
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from braid.server.http2 import frames
from braid.server.http2.frames import ConnectionFault, ErrorCode, frame, number_frame
from braid.server.http2.headers import (
    MAX_HEADER_BYTES,
    NOT_GRPC,
    BadHead,
    Block,
    HeaderBlocks,
    RequestHead,
    read_head,
    write_refusal,
)
from braid.server.http2.hpack import Field
from braid.server.http2.messages import WINDOW_BYTES, Incoming
from braid.server.http2.receiving import DATA_FRAME_BYTES, Receiver
from braid.server.http2.sending import Outgoing, Sender
from braid.server.observability.logs import Seldom

log = logging.getLogger("braid.rpc")

LOG_SECONDS: Final = 60.0
_seldom: Final = Seldom(LOG_SECONDS)  # of all connections: anybody can make one

CONNECTION_WINDOW_BYTES: Final = 16 << 20

_HEADERS_TOO_LONG: Final = write_refusal(8, "metadata is too long")  # RESOURCE_EXHAUSTED


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection, and when it is asked whether its peer is there."""

    message_bytes: int
    streams: int  # calls under way
    keepalive_s: float  # between two pings
    answer_s: float  # that a ping's answer may take


class HttpStream:
    """Stream of one call."""

    __slots__ = ("call", "head", "incoming", "is_counted", "outgoing")

    def __init__(self, head: RequestHead, incoming: Incoming, outgoing: Outgoing) -> None:
        self.head = head
        self.incoming = incoming
        self.outgoing = outgoing
        self.call: CallOfStream | None = None
        self.is_counted = True  # among the calls under way


class CallOfStream(Protocol):
    """Call that a stream carries."""

    def cancel(self) -> None:
        """End it, as the caller has left."""


class HttpConnection(asyncio.BufferedProtocol):
    """Protocol of one connection. Belongs to the event loop."""

    def __init__(
        self, limits: ConnectionLimits, begin: Callable[[HttpConnection, HttpStream], CallOfStream]
    ) -> None:
        """Wait for calls, which ``begin`` begins."""
        self.peer = ""
        self.sender = Sender()
        self.on_made: Callable[[HttpConnection], object] = lambda _: None
        self.on_closed: Callable[[HttpConnection], object] = lambda _: None
        self._limits = limits
        self._begin = begin
        self._receiver = Receiver(self)
        self._blocks = HeaderBlocks()
        self._streams: dict[int, HttpStream] = {}
        self._last_stream = 0
        self._running = 0  # calls, those among them that their callers have left
        self._window = CONNECTION_WINDOW_BYTES
        self._is_closing = False
        self._has_settings = False
        self._heard_at = monotonic()
        self._alarm: asyncio.TimerHandle | None = None

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Greet the peer."""
        self.sender.transport = transport
        self.peer = _name(transport.get_extra_info("peername"))
        settings = {
            frames.MAX_CONCURRENT_STREAMS: self._limits.streams,
            frames.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            frames.MAX_FRAME_SIZE: DATA_FRAME_BYTES,
            frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
        more = CONNECTION_WINDOW_BYTES - frames.USUAL_WINDOW_BYTES
        growth = number_frame(frames.WINDOW_UPDATE, 0, more)
        self.sender.control(frames.settings_frame(settings) + growth)
        self._wait(min(self._limits.keepalive_s, self._limits.answer_s), self._check_greeting)
        self.on_made(self)

    def connection_lost(self, _: Exception | None) -> None:
        """End all calls."""
        self._is_closing = True
        if self._alarm is not None:
            self._alarm.cancel()
        for stream in list(self._streams.values()):
            self._leave(stream)
        self.sender.wake()
        self.on_closed(self)

    def get_buffer(self, _: int) -> memoryview:
        """Return where the next bytes are received."""
        return self._receiver.place()

    def buffer_updated(self, size_bytes: int) -> None:
        """Read what was received."""
        self._heard_at = monotonic()
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
        """Tell the peer why its connection ends, and end it."""
        self._is_closing = True
        self.sender.control(frames.goaway_frame(self._last_stream, fault.code, str(fault)))
        self.sender.transport.close()
        self._wait(self._limits.answer_s, self.abort)  # unless the peer has read it all by then

    def pause_writing(self) -> None:
        """Hold back what is to be sent."""
        self.sender.pause()

    def resume_writing(self) -> None:
        """Send on."""
        self.sender.resume()

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(seconds, then)

    def _check_greeting(self) -> None:
        """Close unless the peer speaks HTTP/2 by now."""
        if self._has_settings:
            self._ping()
        else:
            self.abort()

    def _ping(self) -> None:
        """Ask whether the peer is there, if nothing came for long."""
        idle_s = monotonic() - self._heard_at
        if idle_s < self._limits.keepalive_s:
            self._wait(self._limits.keepalive_s - idle_s, self._ping)
        else:
            self.sender.control(frame(frames.PING, 0, 0, b"braid-up"))
            self._wait(self._limits.answer_s, partial(self._check, self._heard_at))

    def _check(self, heard_at: float) -> None:
        """Close if nothing came since a ping was sent."""
        if self._heard_at == heard_at:
            self.abort()
        else:
            self._wait(self._limits.keepalive_s, self._ping)

    # -- what the server and its calls do -----------------------------------------------------

    def close(self) -> None:
        """Take no more calls; close when those under way have ended."""
        if not self._is_closing:
            self._is_closing = True
            self.sender.control(frames.goaway_frame(self._last_stream, ErrorCode.NO_ERROR))
            if not self._running:
                self.sender.transport.close()

    def abort(self) -> None:
        """Close now."""
        self.sender.transport.abort()

    def allow_more(self, stream: HttpStream) -> None:
        """Let the peer send on, unless a message waits to be read."""
        incoming = stream.incoming
        if incoming.ready or incoming.has_ended or stream.outgoing.has_ended:
            return
        wanted = max(WINDOW_BYTES, incoming.missing_bytes)
        if incoming.window <= wanted // 2:
            more, incoming.window = wanted - incoming.window, wanted
            growth = number_frame(frames.WINDOW_UPDATE, stream.outgoing.number, more)
            self.sender.control(growth)

    @property
    def is_idle(self) -> bool:
        """Bool: no call is under way."""
        return not self._running

    def answered(self, stream: HttpStream) -> None:
        """Count a call no more: its caller may know its status, and begin the next call."""
        self._running -= stream.is_counted
        stream.is_counted = False

    def ended(self, stream: HttpStream) -> None:
        """Forget a call that has ended; its caller hears so if its status was not sent."""
        self.answered(stream)
        number = stream.outgoing.number
        if self._streams.pop(number, None) is not None:
            if not stream.outgoing.is_answered:
                self.sender.reset(number, ErrorCode.CANCEL)
            elif not stream.incoming.has_ended:
                self.sender.reset(number, ErrorCode.NO_ERROR)
        self.sender.leave(stream.outgoing)
        stream.incoming.drop()  # the call and its stream name each other: kept until a collection
        if self._is_closing and not self._running:
            self.sender.transport.close()

    # -- frames -------------------------------------------------------------------------------

    def begin_data(self, number: int, length: int) -> Incoming | None:
        """Count received bytes; returns the messages that they are for."""
        self._blocks.check(frames.DATA)
        stream = self._streams.get(number)
        if not 0 < number <= self._last_stream or (stream and stream.incoming.has_ended):
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "data without headers, or after the end")
        self._window -= length
        if stream is not None:
            stream.incoming.window -= length
        if self._window < 0 or (stream and stream.incoming.window < 0):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window was sent")
        if self._window <= CONNECTION_WINDOW_BYTES // 2:
            more, self._window = CONNECTION_WINDOW_BYTES - self._window, CONNECTION_WINDOW_BYTES
            self.sender.control(number_frame(frames.WINDOW_UPDATE, 0, more))
        return None if stream is None else stream.incoming

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
        if not self._has_settings and kind != frames.SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings come first")
        self._blocks.check(kind)
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
        if number <= self._last_stream:  # trailers, which mean nothing to gRPC, or a late frame
            if is_last:
                self.end_data(number, is_last)
            return
        self._last_stream = number
        self._begin_call(number, fields, is_last)

    def _begin_call(self, number: int, fields: list[Field] | None, is_last: bool) -> None:
        if self._running >= self._limits.streams or self._is_closing:
            self.sender.reset(number, ErrorCode.REFUSED_STREAM)
            return
        if fields is None:
            self._refuse(number, _HEADERS_TOO_LONG)
            return
        try:
            head = read_head(fields)
        except BadHead:
            self._refuse(number, NOT_GRPC)
            return
        incoming = Incoming(self._limits.message_bytes, head.encoding)
        stream = HttpStream(head, incoming, Outgoing(number))
        self._streams[number] = stream
        self._running += 1
        if is_last:
            incoming.end()
        stream.call = self._begin(self, stream)

    def _refuse(self, number: int, block: bytes) -> None:
        """Answer what does not become a call."""
        flags = frames.END_HEADERS | frames.END_STREAM
        self.sender.control(frame(frames.HEADERS, flags, number, block))

    def _leave(self, stream: HttpStream) -> None:
        """End a call whose caller has left."""
        self._streams.pop(stream.outgoing.number, None)
        self.sender.leave(stream.outgoing)
        if stream.call is not None:
            stream.call.cancel()

    def _rst_stream(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != 4 or not 0 < number <= self._last_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a reset is malformed")
        stream = self._streams.get(number)
        if stream is not None:
            self._leave(stream)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings are malformed")
        if flags & frames.ACK:
            return
        self._has_settings = True
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
        if len(payload) != 4 or not more or number > self._last_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window update is malformed")
        stream = self._streams.get(number)
        if not number:
            self.sender.grow(None, more)
        elif stream is not None:
            self.sender.grow(stream.outgoing, more)

    def _push_promise(self, *_: object) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients promise nothing")


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
