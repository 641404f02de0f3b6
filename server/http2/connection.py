"""One connection of HTTP/2: its streams, settings, pings and limits (RFC 9113).

Windows for what peers send are large, so that a tensor comes without a pause; what a call holds is
bounded by the limit on messages, and by its window while nobody reads it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final

from braid.server.http2 import frames
from braid.server.http2.accepting import Place
from braid.server.http2.arrivals import Arrivals
from braid.server.http2.floods import BYTES_PER_FRAME, CALL_SECONDS, FrameBudget, ReadTurns
from braid.server.http2.flow_control import CONNECTION_WINDOW_BYTES, FlowControl
from braid.server.http2.frames import ConnectionFault, ErrorCode, frame, number_frame
from braid.server.http2.keepalive import KeepAlive
from braid.server.http2.messages import WINDOW_BYTES, Incoming
from braid.server.http2.receiving import DATA_FRAME_BYTES, Receiver
from braid.server.http2.request_headers import (
    MAX_HEADER_BYTES,
    Block,
    HeaderBlocks,
    RequestHead,
    are_trailers,
)
from braid.server.http2.sending import Sender
from braid.server.http2.streams import Cancel, ConnectionLimits, ConnectionStreams, HttpStream
from braid.server.inference.call_memory import ConnectionMemory
from braid.server.observability.logs import Seldom

log = logging.getLogger("braid.rpc")

STRANGER_UNSENT_BYTES: Final = 1 << 13
"""Bytes that a stranger may leave unread before nothing more is written."""
CONNECTION_SECONDS: Final = 3e-4
FREE_SECONDS: Final = 1e-3
"""Time that a connection costs, and that each has whatever others of its address have used: enough
to show a token."""
LOG_SECONDS: Final = 60.0
_seldom: Final = Seldom(LOG_SECONDS)  # of all connections: anybody can make one


class HttpConnection(asyncio.BufferedProtocol):
    """Protocol of one connection. Belongs to the event loop."""

    def __init__(
        self,
        limits: ConnectionLimits,
        arrivals: Arrivals,
        turns: ReadTurns,
        begin: Callable[[HttpConnection, HttpStream], Cancel],
    ) -> None:
        self.peer = ""
        self.memory: ConnectionMemory  # once it is known who the peer is
        self.sender = Sender()
        self.flow: FlowControl
        self.place: Place  # set before the transport is
        self.on_made: Callable[[HttpConnection], object] = lambda _: None
        self.on_closed: Callable[[HttpConnection], object] = lambda _: None
        self._limits = limits
        self._arrivals = arrivals
        self._turns = turns
        self._unread_bytes = 0  # received, to be read in a later turn
        self._kept_bytes = self._unsent_bytes = 0  # of memory, by what is received and sent
        self._spent_s = 0.0
        self._until = math.inf  # a stranger in debt is read from
        self._paid_streams = 0
        self._receiver = Receiver(self)
        self._blocks = HeaderBlocks()
        self._budget = FrameBudget(self.sender, limits.streams)
        self.streams = ConnectionStreams(limits, self.sender, self._budget, partial(begin, self))
        self._keepalive = KeepAlive(self.sender, limits.keepalive_s, limits.answer_s)

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.sender.transport = transport
        self.peer = _name(transport)
        self.memory = self.streams.memory = self._arrivals.memory.connection(self.peer)
        self.flow = FlowControl(self.sender, self._arrivals, self.memory)
        if not self.memory.caller.is_known:
            self.memory.caller.spend(CONNECTION_SECONDS)
            transport.set_write_buffer_limits(STRANGER_UNSENT_BYTES)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            transport.abort()
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
        self.streams.is_closing = True
        self._keepalive.stop()
        self.streams.leave_all()
        self.sender.wake()
        self.memory.release(self._kept_bytes + self._unsent_bytes)
        self._kept_bytes = self._unsent_bytes = 0
        self.on_closed(self)

    def get_buffer(self, _: int) -> memoryview:
        return self._receiver.place()

    def buffer_updated(self, size_bytes: int) -> None:
        """Read what was received, or in a later turn of the event loop."""
        self._keepalive.heard_at = now = monotonic()
        if self._turns.has_time(now):
            wait_s = self._read(size_bytes, now)
        else:
            self._unread_bytes, wait_s = size_bytes, 0.0
        if wait_s is not None:
            self.sender.transport.pause_reading()
            self._turns.wait(self.read_on, wait_s)

    def read_on(self) -> None:
        if self.sender.transport.is_closing():
            return
        now, wait_s = monotonic(), None
        if self._turns.has_time(now):
            size_bytes, self._unread_bytes = self._unread_bytes, 0
            wait_s = self._read(size_bytes, now)
        else:
            wait_s = 0.0
        if wait_s is not None:
            self._turns.wait(self.read_on, wait_s)
        elif not self.sender.transport.is_closing():
            self.sender.transport.resume_reading()

    def _read(self, size_bytes: int, now: float) -> float | None:
        """Read bytes that were received; returns the seconds to wait before more, None: none."""
        if self.sender.is_over:
            return None
        is_all, caller = True, self.memory.caller
        if not caller.is_known:
            self._until = math.inf
            if caller.spend(0.0):
                self._until = now + FREE_SECONDS
                self._budget.wait()
        try:
            is_all = self._receiver.received(size_bytes)
            if not self.memory.caller.is_known:
                return self._spent(monotonic() - now, is_all)
        except ConnectionFault as fault:
            self._give_up(fault)
        except Exception as error:  # a bug, or no memory: of this connection alone
            held_back = _seldom.passes()
            if held_back is not None:
                facts = {"peer": self.peer, "not_logged": held_back}
                log.error("a connection fails", exc_info=error, extra=facts)
            self._give_up(ConnectionFault(ErrorCode.INTERNAL_ERROR, "internal error"))
        return None if is_all else 0.0

    def _spent(self, seconds: float, is_all: bool) -> float | None:
        """Charge a stranger with time and memory of reading; returns as ``_read``."""
        held_bytes = self._receiver.held_bytes + self._blocks.held_bytes + self.streams.cut_bytes
        if held_bytes != self._kept_bytes:
            if not self.memory.hold(held_bytes - self._kept_bytes):
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "no memory for strangers")
            self._kept_bytes = held_bytes
        handling_s = (self.streams.last - self._paid_streams) * CALL_SECONDS
        self._paid_streams = self.streams.last
        self._spent_s += seconds
        wait_s = self.memory.caller.spend(seconds + handling_s)
        if wait_s and self._spent_s > FREE_SECONDS:
            return wait_s
        return None if is_all else 0.0

    def has_time(self) -> bool:
        now = monotonic()
        return now < self._until and self._turns.has_time(now)

    def know(self, head: RequestHead) -> None:
        """Count the peer as no stranger any more: a message of this call of it was asked for."""
        tokens = [value for name, value in head.invocation_metadata if name == "authorization"]
        self.memory.know(str(*tokens[:1]))
        self._until = math.inf
        self.sender.transport.set_write_buffer_limits()

    def _give_up(self, fault: ConnectionFault) -> None:
        """Tell the peer why its connection ends, and end all calls.

        What still comes is dropped for a moment: to close at once would reset the connection, and
        the peer might not read why.
        """
        self.streams.is_closing = True
        self._receiver.forget()
        self.sender.leave_with(frames.goaway_frame(self.streams.last, fault.code, str(fault)))
        self.streams.leave_all()
        self._keepalive.end_soon()

    def pause_writing(self) -> None:
        """Charge what the transport holds; a stranger that has no room for it loses all."""
        self.sender.pause()
        more_bytes = self.sender.transport.get_write_buffer_size()
        if self.memory.caller.is_known or not self.memory.hold(more_bytes):
            self.memory.keep(more_bytes)
            if not self.memory.caller.is_known:
                self.abort()
        self._unsent_bytes += more_bytes

    def resume_writing(self) -> None:
        self.memory.release(self._unsent_bytes)
        self._unsent_bytes = 0
        self.sender.resume()

    # -- what the server and its calls do -----------------------------------------------------

    def close(self) -> None:
        """Take no more calls; close when those under way have ended."""
        if not self.streams.is_closing:
            self.streams.is_closing = True
            self.sender.control(frames.goaway_frame(self.streams.last, ErrorCode.NO_ERROR))
            if self.is_idle:
                self.sender.transport.close()

    def abort(self) -> None:
        self.sender.transport.abort()

    @property
    def is_idle(self) -> bool:
        return not self.streams.running

    def ended(self, stream: HttpStream) -> None:
        self.streams.ended(stream)
        self.flow.ended(stream)
        if self.streams.is_closing and self.is_idle and not self.sender.is_over:
            self.sender.transport.close()

    # -- frames -------------------------------------------------------------------------------

    def begin_data(self, number: int, length: int, padding: int) -> Incoming | None:
        """Count received bytes, with their padding; returns the messages that they are for."""
        if self._blocks.are_unfinished:
            self._blocks.check(frames.DATA)
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "data of no stream")
        stream = self.streams.for_more(number)
        self.flow.received(stream, length)
        if length == padding:
            self._budget.spend()
        elif length >= BYTES_PER_FRAME:
            self._budget.earn(length // BYTES_PER_FRAME)
        if stream is None:
            return None
        if stream.length_left is not None:
            stream.length_left -= length - padding
            if stream.length_left < 0:
                self.streams.fail(stream, ErrorCode.PROTOCOL_ERROR)
                return None
        return stream.incoming

    def end_data(self, number: int, is_last: bool) -> None:
        """Let the peer send on, or tell the call that this was the last of it."""
        stream = self.streams.get(number)
        if stream is None:
            return
        if is_last and stream.length_left:
            self.streams.fail(stream, ErrorCode.PROTOCOL_ERROR)
            return
        if is_last:
            stream.incoming.end()
        if stream.arrival is not None and not stream.outgoing.has_ended:
            self.flow.allow_more(stream.arrival)

    def take_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._keepalive.has_greeted and kind != frames.SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "settings come first")
        if self._blocks.are_unfinished or kind == frames.CONTINUATION:
            self._blocks.check(kind)
        if kind not in _COUNTED_LATER:
            self._budget.spend()
        if kind in _SIZES and len(payload) != _SIZES[kind]:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame has a wrong length")
        if number if kind in _OF_CONNECTION else not number and kind in _OF_STREAM:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame is on the wrong stream")
        match kind:  # else PRIORITY, or unknown
            case frames.HEADERS:
                self._open(number, self._blocks.begin(flags, number, payload))
            case frames.WINDOW_UPDATE:
                self._window_update(number, payload)
            case frames.PING if not flags & frames.ACK:
                self.sender.control(frame(frames.PING, frames.ACK, 0, payload))
            case frames.RST_STREAM:
                if number > self.streams.last:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a reset of no stream")
                self.streams.reset(number, self._keepalive.heard_at)
            case frames.CONTINUATION:
                self._open(number, self._blocks.go_on(flags, number, payload))
            case frames.SETTINGS:
                self._settings(flags, payload)
            case frames.GOAWAY if len(payload) < 8:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is cut off")
            case frames.PUSH_PROMISE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients promise nothing")

    def _open(self, number: int, read: Block | None) -> None:
        if cost := self._blocks.cost():
            self._budget.spend(cost)
        if read is None:
            return
        fields, is_last = read
        if number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients open streams of odd numbers")
        if number > self.streams.last:
            self._turns.shorten()
            self.streams.open(number, fields, is_last, self._keepalive.heard_at)
            return
        self._budget.spend()  # trailers, which mean nothing to gRPC, or a late frame
        stream = self.streams.for_more(number)
        if stream is None:
            return
        if is_last and (fields is None or are_trailers(fields)):
            self.end_data(number, is_last)
        else:
            self.streams.fail(stream, ErrorCode.PROTOCOL_ERROR)

    def _settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "settings have a wrong length")
        if flags & frames.ACK:
            return
        self._keepalive.has_greeted = True
        pairs = list(struct.iter_unpack("!HI", payload))
        for name, value in pairs:
            _check_setting(name, value)
        last = dict(pairs)
        window = last.get(frames.INITIAL_WINDOW_SIZE)
        if window is not None:
            if window + self.streams.largest_window > frames.MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            self.sender.begin_with(window)
        self.sender.frame_bytes = last.get(frames.MAX_FRAME_SIZE, self.sender.frame_bytes)
        self.sender.control(frame(frames.SETTINGS, frames.ACK, 0))

    def _window_update(self, number: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & frames.MAX_WINDOW_BYTES
        if not more or number > self.streams.last:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window update is malformed")
        if not number:
            self.sender.grow(None, more)
        elif stream := self.streams.get(number):
            self.sender.grow(stream.outgoing, more)


_COUNTED_LATER: Final = (frames.HEADERS, frames.RST_STREAM)
"""Frames that count by what they begin or end."""

_SIZES: Final = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
_OF_CONNECTION: Final = (frames.SETTINGS, frames.PING, frames.GOAWAY)
_OF_STREAM: Final = (frames.HEADERS, frames.PRIORITY, frames.RST_STREAM, frames.CONTINUATION)


def _check_setting(name: int, value: int) -> None:
    """Raise ConnectionFault for a value that its setting may not have."""
    if name == frames.INITIAL_WINDOW_SIZE and value > frames.MAX_WINDOW_BYTES:
        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
    if name == frames.ENABLE_PUSH and value > 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a setting is wrong")
    if name == frames.MAX_FRAME_SIZE and not frames.USUAL_FRAME_BYTES <= value < 1 << 24:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame size is wrong")


def _name(transport: Any) -> str:
    listening = transport.get_extra_info("socket")
    if listening is not None and listening.family == socket.AF_UNIX:
        return "unix:"
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return "unknown:"  # it has left already
    host, port = address[:2]
    host = host.removeprefix("::ffff:") if "." in host else host  # IPv4 on a socket of IPv6
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
