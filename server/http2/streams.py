"""Calls of one connection, each on a stream, and how many there may be.

A call counts until its status is sent, or its handler has ended where the caller has left: a peer
that opens and resets streams has no more handlers than one that waits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from braid.server.http2 import frames
from braid.server.http2.answer_headers import ENCODINGS, NOT_GRPC, write_refusal
from braid.server.http2.arrivals import Arrival
from braid.server.http2.floods import FRAMES_PER_ANSWER, RAPID_S, FrameBudget
from braid.server.http2.frames import ConnectionFault, ErrorCode, frame
from braid.server.http2.hpack import Field, HeadersTooLong
from braid.server.http2.messages import Incoming
from braid.server.http2.request_headers import BadHead, BadTimeout, RequestHead, read_head
from braid.server.http2.sending import Outgoing, Sender
from braid.server.inference.call_memory import ConnectionMemory

SKIPS: Final = 100
"""Gaps between numbers of streams that are remembered, to name the fault of who fills one."""
OPEN_MESSAGE_BYTES: Final = 1 << 12
"""Longest message that a method takes which strangers may call."""
KNOWN_HEAD_BYTES: Final = 1 << 12
"""Longest headers that are remembered for the next call."""
CALL_BYTES: Final = 12 << 10
"""Memory of a call beside its headers and messages."""
CUT_BYTES: Final = 128
"""Memory of the number of a stream whose data is ignored."""
FRAMES_PER_LONG: Final = 200
"""Frames without use that headers cost which are too long."""

_HEADERS_TOO_LONG: Final = write_refusal(8, "metadata is too long")  # RESOURCE_EXHAUSTED
_NO_ROOM: Final = write_refusal(8, "too many calls are open; end some, or try again later")
_UNKNOWN_ENCODING: Final = write_refusal(12, "messages are compressed in a way not known here")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection, and when it is asked whether its peer is there."""

    message_bytes: int
    streams: int  # calls under way
    keepalive_s: float  # between two pings
    answer_s: float  # that a ping's answer may take
    open_methods: frozenset[str] = frozenset()  # that strangers may call


Cancel = Callable[[], object]
"""Ends the call of a stream, as its caller has left."""


@dataclass(slots=True, eq=False)
class HttpStream:
    """Stream of one call."""

    head: RequestHead
    incoming: Incoming
    outgoing: Outgoing
    began_at: float  # seconds of ``time.monotonic``
    length_left: int | None  # bytes of the body to come, if the headers told
    cancel: Cancel | None = None  # once the call has begun
    is_counted: bool = True  # among the calls under way
    arrival: Arrival | None = None  # what has come, once something has
    is_open: bool = False  # for strangers
    kept_bytes: int = 0  # of memory that is charged for the call and its headers


@dataclass(slots=True, eq=False)
class ConnectionStreams:
    """Streams of one connection. Belongs to the event loop."""

    _limits: ConnectionLimits
    _sender: Sender
    _budget: FrameBudget
    _begin: Callable[[HttpStream], Cancel]
    memory: ConnectionMemory = field(init=False)  # once it is known who the peer is
    last: int = 0  # number of the stream that was opened last
    running: int = 0  # calls, those among them that their callers have left
    is_closing: bool = False  # no more are taken
    _open: dict[int, HttpStream] = field(default_factory=dict)
    # The stream of a call; None: it has ended, or was refused.
    get: Callable[[int], HttpStream | None] = field(init=False)
    _cut_off: dict[int, None] = field(default_factory=dict)  # ended here; their peer may not know
    # Numbers never opened.
    _skipped: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SKIPS))
    _last_read: tuple[list[Field], RequestHead] | None = None

    def __post_init__(self) -> None:
        self.get = self._open.get

    def for_more(self, number: int) -> HttpStream | None:
        """Return the stream that more has come for; None: it was ended here, and all is ignored.

        Raises ConnectionFault: the peer has ended it, or never opened it.
        """
        stream = self._open.get(number)
        if stream is not None and not stream.incoming.has_ended:
            return stream
        if stream is None and number in self._cut_off:
            return None
        if any(first <= number <= last for first, last in self._skipped):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "numbers of streams go up")
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, "a frame after the end of its stream")

    @property
    def cut_bytes(self) -> int:
        return CUT_BYTES * len(self._cut_off)

    @property
    def largest_window(self) -> int:
        """Most bytes that a stream may be sent beyond the initial window."""
        return max((stream.outgoing.window for stream in self._open.values()), default=0)

    def open(self, number: int, fields: list[Field] | None, is_last: bool, now: float) -> None:
        """Begin a call, or refuse it; ``fields`` None: there are too many. ``now``: monotonic."""
        if number > (first := self.last + 2 if self.last else 1):
            self._skipped.append((first, number - 2))
        self.last = number
        if self.running >= self._limits.streams or self.is_closing:
            if not is_last:
                self._cut(number)
            self._budget.spend()
            self._sender.reset(number, ErrorCode.REFUSED_STREAM)
            return
        head = self._read(fields, is_last)
        if isinstance(head, bytes):
            self._refuse(number, is_last, head)
            return
        is_open, size_bytes = head.method in self._limits.open_methods, head.size_bytes + CALL_BYTES
        if not self.memory.hold(size_bytes):
            if is_open or self.memory.caller.is_known:
                self._refuse(number, is_last, _NO_ROOM)
                return
            self.memory.keep(size_bytes)  # until the token is checked
        limit = OPEN_MESSAGE_BYTES if is_open else self._limits.message_bytes
        incoming = Incoming(limit, head.encoding)
        stream = self._open[number] = HttpStream(head, incoming, Outgoing(number), now, head.length)
        stream.is_open, stream.kept_bytes = is_open, size_bytes
        self.running += 1
        if is_last:
            incoming.end()
        stream.cancel = self._begin(stream)

    def _read(self, fields: list[Field] | None, is_last: bool) -> RequestHead | bytes:
        """Return the head of a call, or the header block of the answer that refuses it."""
        try:
            if fields is None:
                raise HeadersTooLong
            # Headers that are given as the same list as those of the call before were read then.
            if self._last_read is not None and self._last_read[0] is fields:
                head = self._last_read[1]
            else:
                head = read_head(fields)
                is_short = head.size_bytes <= KNOWN_HEAD_BYTES
                self._last_read = (fields, head) if is_short else None
        except HeadersTooLong:
            self._budget.spend(FRAMES_PER_LONG)
            return _HEADERS_TOO_LONG
        except BadTimeout as error:
            return write_refusal(13, str(error))  # INTERNAL, as gRPC does
        except BadHead:
            return NOT_GRPC
        if is_last and head.length:
            return NOT_GRPC
        return head if head.encoding in ENCODINGS else _UNKNOWN_ENCODING

    def _refuse(self, number: int, is_last: bool, block: bytes) -> None:
        """Answer what does not become a call."""
        self._budget.spend()
        flags = frames.END_HEADERS | frames.END_STREAM
        self._sender.control(frame(frames.HEADERS, flags, number, block))
        if not is_last:
            self._cut(number)
            self._sender.reset(number, ErrorCode.NO_ERROR)

    def _cut(self, number: int) -> None:
        """Ignore what still comes on a stream that has ended here."""
        self._cut_off[number] = None
        if len(self._cut_off) > 2 * self._limits.streams + SKIPS:
            del self._cut_off[next(iter(self._cut_off))]

    def answered(self, stream: HttpStream) -> None:
        """Count a call no more: its caller may know its status, and begin the next call."""
        self.running -= stream.is_counted
        stream.is_counted = False
        self._budget.earn(FRAMES_PER_ANSWER)

    def ended(self, stream: HttpStream) -> None:
        """Forget a call that has ended; its caller hears so if its status was not sent."""
        self.memory.release(stream.kept_bytes)
        self.running -= stream.is_counted
        stream.is_counted = False
        number = stream.outgoing.number
        if self._open.pop(number, None) is not None:
            if not stream.incoming.has_ended:
                self._cut(number)
            if not stream.outgoing.is_answered:
                self._sender.reset(number, ErrorCode.CANCEL)
            elif not stream.incoming.has_ended:
                self._sender.reset(number, ErrorCode.NO_ERROR)
        self._sender.leave(stream.outgoing)  # also where a cancelled write waits before a status
        if stream.incoming.ready or not stream.incoming.has_ended:
            stream.incoming.drop()  # call and stream name each other: kept until a collection

    def reset(self, number: int, now: float) -> None:
        stream = self._open.get(number)
        if stream is None or now - stream.began_at < RAPID_S:
            self._budget.spend()
        if stream is not None:
            self._leave(stream)

    def fail(self, stream: HttpStream, code: ErrorCode) -> None:
        self._budget.spend()
        self._cut(stream.outgoing.number)
        self._sender.reset(stream.outgoing.number, code)
        self._leave(stream)

    def leave_all(self) -> None:
        """End all calls, as the connection is lost."""
        for stream in list(self._open.values()):
            self._leave(stream)

    def _leave(self, stream: HttpStream) -> None:
        self._open.pop(stream.outgoing.number, None)
        self._sender.leave(stream.outgoing)
        if stream.cancel is not None:
            stream.cancel()
