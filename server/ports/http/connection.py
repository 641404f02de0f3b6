"""One connection of the HTTP port: uvicorn's protocol, within limits of bytes and seconds.

    RECEIVING ──whole request──> ANSWERING ──answer written──> SENDING ──taken──> IDLE ──┐
        └──────────────<──────────────────first byte of the next request──────────<──────┘

A phase that takes too long ends the connection. A large body or answer has more time than a small
one, as long as it moves at ``bytes_per_second``. What follows a request on the same connection is
read once its answer is taken. A request that is answered before its body has come is read to its
end, so that its caller sees the answer.
"""

import asyncio
import enum
from asyncio import Transport
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from braid.server.http2.accepting import Connections, Place

JOINED_BYTES = 64 << 10
"""Largest part of a body that is copied behind its head; a larger one is written by itself."""

CUT_BYTES = 256
"""Least part of a chunked body that is read at once."""

_CONTINUE = b"HTTP/1.1 100 "
_END = b"\r\n\r\n"  # of a head without a body, and of a chunked body


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Seconds that callers of the port may take, bytes they may send, and their connections."""

    request_seconds: float = 5.0  # until a request is there, at least
    response_seconds: float = 10.0  # until its answer is taken, at least
    bytes_per_second: int = 64 << 10  # slower callers get no more time than that
    idle_seconds: float = 75.0  # between two requests of a connection
    page_seconds: float = 60.0  # of a page that only shows; forms take as long as what they change
    head_bytes: int = 16 << 10  # request line and headers
    head_fields: int = 128
    unwanted_bytes: int = 64 << 20  # of a body that was refused, read so that the caller sees why
    max_connections: int = 1024  # where the ports do not share their limit


@dataclass(slots=True)
class AnswerWriter:
    """The part of a transport that uvicorn uses while it answers one request.

    An answer's head leaves together with the first part of its body; uvicorn writes both apart. A
    caller that waits is woken by the head, finds no body, and waits again: of an answer of 4 KB,
    that was the tenth part of a call's time.
    """

    _transport: Transport
    _head: bytes = b""
    _is_begun: bool = False

    def write(self, data: bytes) -> None:
        """Write the next part; the first one is the head, which waits for the second."""
        if not self._is_begun and not data.startswith(_CONTINUE):
            self._is_begun = True
            self._head = data
            return
        head, self._head = self._head, b""
        if len(data) <= JOINED_BYTES:
            data = head + data
        elif head:
            self._transport.write(head)
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """End the connection once all is written."""
        if self._head:
            self.write(b"")
        self._transport.close()


class Phase(enum.Enum):
    """What a connection waits for."""

    RECEIVING = enum.auto()  # the caller, who sends a request
    ANSWERING = enum.auto()  # the server
    SENDING = enum.auto()  # the caller, who takes the answer
    IDLE = enum.auto()  # the next request


class CallerConnection(HttpToolsProtocol):
    """Connection of one caller."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        place: Place,
        connections: Connections,
        limits: HttpLimits,
    ) -> None:
        super().__init__(config, server_state, {"connection": self})
        self.place = place
        self.is_lost = False
        self.charges_answer = False  # the route does, to the memory of calls
        self.on_lost: Callable[[], object] | None = None  # of the request at work
        self._connections = connections
        self._limits = limits
        self._phase: Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0  # the phase, by the event loop's clock
        self._received_bytes = 0  # in this phase
        self._unread_bytes = 0  # of answers, when they were last looked at
        self._unwanted_bytes = 0  # of a body that came after its answer
        self._silent_bytes = 0  # since the last byte of a body: of a head, or of trailers
        self._is_whole = False  # the last request that began has come to its end
        self._unparsed = b""  # what follows the request at work, behind some that is parsed
        self._parsed = 0
        self._body_left = 0  # bytes, as far as the head tells
        self._held_bytes = 0  # as noted
        self._refusal = HTTPStatus.BAD_REQUEST  # what a request that cannot be parsed gets

    # -- what a request's route asks ------------------------------------------------------------

    @property
    def has_certificate(self) -> bool:
        """True if the caller has shown a certificate that its authority signed."""
        return bool(self.transport.get_extra_info("peercert"))

    async def taken(self) -> None:
        """Return when the caller has taken the answer, but for what the system buffers."""
        await self.flow.drain()

    def drop(self) -> None:
        """Close the connection without an answer, or what is left of one."""
        self.is_lost = True
        self.transport.abort()

    # -- what the transport says ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(
            1, 0
        )  # an answer is taken when nothing of it is left here
        self.place.drop = self.drop
        self.place.is_at_work = lambda: self._phase is Phase.ANSWERING
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_lost = True
        self._connections.leave(self.place)
        self._connections.answering.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self.parser is None:
            return
        self._received_bytes += len(data)
        self._unparsed = self._unparsed[self._parsed :] + data if self._unparsed else data
        self._parsed = 0
        self._read_on()

    def _read_on(self) -> None:
        """Read what has come, up to the end of one request whose answer is not taken."""
        while self._unparsed and self._may_read():
            self._parse(self._cut())
        if self._unparsed:
            self.flow.pause_reading()
        self._note_held()

    def _may_read(self) -> bool:
        if self.pipeline or self.transport.is_closing():
            return False
        is_answered = self.cycle is None or self.cycle.response_complete
        return not self._is_whole or (is_answered and not self.flow.write_paused)

    def _cut(self) -> memoryview:
        """Take what does not go beyond the end of a request, or little if its length is unknown."""
        data, at = self._unparsed, self._parsed
        end = at + self._body_left
        if end == at:
            is_chunked = not self._is_whole and self.cycle is not None and self.cycle.more_body
            found = data.find(_END, at + CUT_BYTES if is_chunked else at)
            end = len(data) if found < 0 else found + len(_END)
        self._parsed = end
        if end >= len(data):
            self._unparsed, self._parsed = b"", 0
        return memoryview(data)[at:end]

    def _parse(self, data: memoryview) -> None:
        self._silent_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as if it had not asked
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        limits, fields = self._limits, len(self.headers or ())
        if self._silent_bytes > limits.head_bytes or fields > limits.head_fields:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _note_held(self) -> None:
        """Note bytes that wait here: further requests, and an answer that nobody charges."""
        size_bytes = len(self._unparsed)
        if self.flow.write_paused and not self.charges_answer:
            size_bytes += self.transport.get_write_buffer_size()
        if size_bytes != self._held_bytes and not self.is_lost:
            self._held_bytes = size_bytes
            self._connections.hold(self.place, size_bytes)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._settle()
        self._note_held()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()
        self._read_on()
        if not self._unparsed:
            self.flow.resume_reading()

    # -- what the parser says -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_whole = self.charges_answer = False
        self._unwanted_bytes = 0
        self._settle()

    def on_headers_complete(self) -> None:
        """Start the route; raises for a head that is too large or names two hosts."""
        self._silent_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.head_bytes or len(self.headers) > self._limits.head_fields:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("head too large")
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise ValueError("two hosts")
        told = dict(self.headers)
        self._body_left = int(told.get(b"content-length", 0))
        self._connections.used(self.place, told.get(b"authorization", b"").decode("latin-1"))
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # whose answer has no body for its head to wait for
            self.cycle.transport = AnswerWriter(self.transport)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, unless its request is answered."""
        self._silent_bytes = 0
        self._body_left -= min(self._body_left, len(body))
        super().on_body(body)
        if self.cycle.response_complete:
            self._unwanted_bytes += len(body)
            if self._unwanted_bytes > self._limits.unwanted_bytes:
                self.drop()

    def on_message_complete(self) -> None:
        self._silent_bytes = 0
        self._is_whole = True
        super().on_message_complete()
        self._settle()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self.cycle.body = bytearray()  # what the route did not read
        super().on_response_complete()
        self._unset_keepalive_if_required()  # its timer knows no bodies that come late
        self.on_lost = None
        self._settle()
        self._read_on()

    # -- phases ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        phase = self._now()
        if phase is self._phase:
            return
        self._phase = phase
        if phase is Phase.ANSWERING:
            self._connections.answering.add(self)
        else:
            self._connections.answering.discard(self)
        loop = self.loop
        self._began, self._received_bytes = loop.time(), 0
        self._unread_bytes = self.transport.get_write_buffer_size()
        if self._timer is not None:
            self._timer.cancel()
        seconds = {  # at least; ANSWERING: as long as the route
            Phase.RECEIVING: self._limits.request_seconds,
            Phase.SENDING: self._limits.response_seconds,
            Phase.IDLE: self._limits.idle_seconds,
        }.get(phase)
        self._timer = None if seconds is None else loop.call_later(seconds, self._overdue)

    def _now(self) -> Phase:
        cycle = self.cycle
        if self.flow.write_paused or (cycle is not None and self.transport.is_closing()):
            return Phase.SENDING
        is_at_work = cycle is not None and not cycle.response_complete and not cycle.more_body
        if self.pipeline or is_at_work:
            return Phase.ANSWERING
        return Phase.IDLE if self._is_whole else Phase.RECEIVING

    def _overdue(self) -> None:
        """End the connection, unless a large body or answer moves fast enough."""
        more = 0.0
        if self._phase is Phase.RECEIVING:
            earned = self._received_bytes / self._limits.bytes_per_second
            more = self._began + self._limits.request_seconds + earned - self.loop.time()
        elif self._phase is Phase.SENDING:
            unread = self.transport.get_write_buffer_size()
            due = self._limits.response_seconds * self._limits.bytes_per_second
            more = self._limits.response_seconds if self._unread_bytes - unread >= due else 0.0
            self._unread_bytes = unread
        if more > 0:
            self._timer = self.loop.call_later(more, self._overdue)
        else:
            self.drop()

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer what cannot be parsed, unless an answer is on its way; close the connection."""
        self._unparsed = b""
        cycle = self.cycle
        is_free = cycle is None or cycle.response_complete or not cycle.response_started
        if not is_free or self._phase in (Phase.ANSWERING, Phase.SENDING):
            self.drop()
            return
        body = f"{status.phrase}\n".encode()
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()
