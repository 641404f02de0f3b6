"""Messages of one call as they arrive: length prefix, message, next prefix, ...

A message has five bytes before it: whether it is compressed, and its length. A large message gets
its memory when its prefix is there, and is received in place; pages that nothing was received in
take no memory. A compressed message is measured when it is asked for, before anything of it is
kept: it is decompressed piece by piece, up to the limit on messages, and then once more into memory
that its call may have. Large ones are decompressed in a thread, one at a time, and one of a
connection at a time, so that nobody's keep all others waiting.
"""

import asyncio
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

PREFIX_BYTES: Final = 5
WINDOW_BYTES: Final = 1 << 20
"""Bytes that a peer may send on a stream before anybody reads it."""
SMALL_BYTES: Final = 1 << 14
"""Messages up to this size are copied into ``bytes``; larger ones are received in place."""

MAX_READY: Final = 256
"""Messages that are told apart before anybody reads them; what follows stays as it came."""

INLINE_BYTES: Final = 1 << 16
"""Decompressed bytes that the event loop makes itself; a thread makes what is beyond."""
PIECE_BYTES: Final = 1 << 18
"""Decompressed at once while a message is measured."""
READY_BYTES: Final = 160
"""Memory of a message beside its bytes."""
PAGE_BYTES: Final = 1 << 12
HUGE_PAGE_BYTES: Final = 1 << 21
"""Memory is taken in such pages; in huge ones where NumPy asks for HUGE_BYTES or more."""
HUGE_BYTES: Final = 1 << 22

Message = bytes | memoryview

_WBITS: Final = {"gzip": 31, "deflate": 15}
_INFLATING: Final = ThreadPoolExecutor(1, "braid-inflate")  # begins with the first large message


class Compressed(NamedTuple):
    """Message that came compressed."""

    data: Message
    size_bytes: int = -1  # decompressed; negative: it was not measured yet
    small: bytes | None = None  # the message itself, if it is small


class TooLarge(Exception):
    """A message is longer than the server takes."""


class BadMessage(Exception):
    """A message cannot be decompressed, is cut off, or has a wrong prefix."""


class NoRoom(Exception):
    """A message did not come in time while memory for messages was short."""


@dataclass(slots=True, eq=False)
class Incoming:
    """Messages of one call as they arrive. Belongs to the event loop."""

    _limit: int  # bytes of one message, before and after it is decompressed
    encoding: InitVar[str]
    _wbits: int | None = None
    _prefix: bytes = b""
    _backlog: bytearray = field(default_factory=bytearray)
    _body: memoryview | None = None
    _filled: int = 0
    _compressed: bool = False
    _ready_bytes: int = 0
    _waiter: asyncio.Future[None] | None = None
    ready: deque[Message | Compressed] = field(default_factory=deque)
    window: int = WINDOW_BYTES
    has_ended: bool = False
    is_reserved: bool = False  # the whole present message counts as held
    failure: Exception | None = None

    def __post_init__(self, encoding: str) -> None:
        self._wbits = None if encoding == "identity" else _WBITS[encoding]

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that messages hold here, those that are reserved for one included."""
        body = 0
        if self._body is not None:
            page = PAGE_BYTES if len(self._body) < HUGE_BYTES else HUGE_PAGE_BYTES
            touched = len(self._body) if self.is_reserved else -(-self._filled // page) * page
            body = READY_BYTES + min(touched, len(self._body))
        return self._ready_bytes + len(self._backlog) + body

    @property
    def is_compressed(self) -> bool:
        return bool(self.ready) and isinstance(self.ready[0], Compressed)

    @property
    def body_bytes(self) -> int:
        """Length of the present message, received in place; 0: there is none."""
        return 0 if self._body is None else len(self._body)

    @property
    def missing_bytes(self) -> int:
        return 0 if self._body is None else len(self._body) - self._filled

    def place(self) -> memoryview | None:
        """Return where the next bytes of the present message belong; None: no large one."""
        return None if self._body is None else self._body[self._filled :]

    def received(self, size_bytes: int) -> None:
        """Count bytes that were received at ``place``."""
        if self._body is None:
            return  # given up since then
        self._filled += size_bytes
        if self._filled == len(self._body):
            try:
                self._complete(self._body)
            except (TooLarge, BadMessage) as failure:
                self._fail(failure)

    def feed(self, data: memoryview) -> None:
        """Take bytes of the stream; after a message that cannot be read the rest is dropped."""
        if self._backlog:
            self._backlog += data
        elif self.failure is None:
            try:
                self._feed(data)
            except (TooLarge, BadMessage) as failure:
                self._fail(failure)

    def _feed(self, data: memoryview) -> None:
        while data:
            if self._body is None:
                if len(self.ready) >= MAX_READY:
                    self._backlog += data
                    return
                missing = PREFIX_BYTES - len(self._prefix)
                self._prefix += data[:missing]
                data = data[missing:]
                if len(self._prefix) < PREFIX_BYTES:
                    return
                prefix, self._prefix = self._prefix, b""
                length = self._begin(prefix)
                if length <= len(data) and length <= SMALL_BYTES:
                    self._complete(bytes(data[:length]))
                    data = data[length:]
                    continue
                # Not cleared, as it is written at once.
                self._body, self._filled = np.empty(length, np.uint8).data, 0
            taken = min(len(data), len(self._body) - self._filled)
            self._body[self._filled : self._filled + taken] = data[:taken]
            data = data[taken:]
            self._filled += taken
            if self._filled == len(self._body):
                self._complete(self._body)

    def end(self) -> None:
        self.has_ended = True
        self._check_end()
        if self._waiter is not None:
            self._wake()

    async def arrived(self) -> bool:
        """Wait for a message; False: there is none. Raises TooLarge, BadMessage or NoRoom."""
        while not self.ready:
            if self.failure is not None:
                raise self.failure
            if self.has_ended:
                return False
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return True

    async def measure(self) -> int:
        """Length of the message that arrived, decompressed. Raises TooLarge or BadMessage."""
        if not self.ready:
            return 0  # given up, as ``take`` will say
        message = self.ready[0]
        if not isinstance(message, Compressed):
            return len(message)
        measured = await self._measured(message.data)
        if self.ready and self.ready[0] is message:  # else it was given up meanwhile
            self.ready[0] = measured
        return measured.size_bytes

    async def take(self) -> Message:
        """Return the message that was measured. Raises NoRoom: the message was given up."""
        if not self.ready:
            assert self.failure is not None
            raise self.failure
        message = self.ready.popleft()
        data = message.data if isinstance(message, Compressed) else message
        self._ready_bytes -= len(data) + READY_BYTES
        if self._backlog and not self.ready:  # nothing ready means nothing unread, see allow_more
            backlog, self._backlog = memoryview(self._backlog), bytearray()
            self.feed(backlog)
            self._check_end()
        if data is message:
            return data
        assert isinstance(message, Compressed)
        if message.small is not None:
            return message.small
        assert self._wbits is not None
        inflate = partial(zlib.decompress, data, self._wbits, message.size_bytes + 1)
        return await asyncio.get_running_loop().run_in_executor(_INFLATING, inflate)

    def give_up(self, failure: Exception) -> None:
        """Forget what was received, and what comes still; whoever reads gets ``failure``."""
        self.ready.clear()
        self._ready_bytes = 0
        self._backlog = bytearray()
        self._prefix = b""
        self._fail(failure)

    def drop(self) -> None:
        """Forget what was received, and what comes still: the call has ended."""
        self.give_up(BadMessage("the call has ended"))

    def _begin(self, prefix: bytes) -> int:
        self._compressed = prefix[0] != 0
        length = int.from_bytes(prefix[1:], "big")
        if prefix[0] > 1 or (self._compressed and self._wbits is None):
            raise BadMessage("a message is compressed in a way that the call does not name")
        if length > self._limit:
            raise TooLarge(f"Received message larger than max ({length} vs. {self._limit})")
        return length

    def _complete(self, message: Message) -> None:
        self._body, self._filled, self.is_reserved = None, 0, False
        self.ready.append(Compressed(message) if self._compressed else message)
        self._ready_bytes += len(message) + READY_BYTES
        if self._waiter is not None:
            self._wake()

    async def _measured(self, data: Message) -> Compressed:
        assert self._wbits is not None
        most = min(INLINE_BYTES, self._limit)
        if len(data) <= INLINE_BYTES:
            small = _small(data, self._wbits, most)
            if small is not None:
                return Compressed(data, len(small), small)
            if most == self._limit:
                raise TooLarge(f"Received message larger than max ({self._limit})")
        loop = asyncio.get_running_loop()
        size_bytes = await loop.run_in_executor(
            _INFLATING, _measure, data, self._wbits, self._limit
        )
        return Compressed(data, size_bytes)

    def _check_end(self) -> None:
        is_within_message = self._body is not None or self._prefix
        if is_within_message and self.has_ended and self.failure is None and not self._backlog:
            self._fail(BadMessage("the call ended within a message"))

    def _fail(self, failure: Exception) -> None:
        self.failure = failure
        self._body, self._filled, self.is_reserved = None, 0, False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _small(data: Message, wbits: int, most_bytes: int) -> bytes | None:
    """Decompress a message; None: it has more than ``most_bytes``. Raises BadMessage."""
    stream = zlib.decompressobj(wbits)
    try:
        message = stream.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise BadMessage("a message cannot be decompressed") from error
    if len(message) > most_bytes:
        return None
    _check_whole(stream)
    return message


def _measure(data: Message, wbits: int, limit_bytes: int) -> int:
    """Length of a message, decompressed piece by piece. Raises TooLarge or BadMessage."""
    stream, size_bytes = zlib.decompressobj(wbits), 0
    try:
        for at in range(0, len(data), PIECE_BYTES):
            piece: Message = data[at : at + PIECE_BYTES]
            while piece:
                size_bytes += len(stream.decompress(piece, PIECE_BYTES))
                if size_bytes > limit_bytes:
                    raise TooLarge(f"Received message larger than max ({limit_bytes})")
                piece = stream.unconsumed_tail
            if stream.eof and at + PIECE_BYTES < len(data):
                raise BadMessage("a compressed message goes on after its end")
        while not stream.eof and (more := stream.decompress(b"", PIECE_BYTES)):
            size_bytes += len(more)
            if size_bytes > limit_bytes:
                raise TooLarge(f"Received message larger than max ({limit_bytes})")
    except zlib.error as error:
        raise BadMessage("a message cannot be decompressed") from error
    _check_whole(stream)
    return size_bytes


def _check_whole(stream: Any) -> None:
    if not stream.eof or stream.unused_data:
        raise BadMessage("a compressed message is cut off, or goes on after its end")
