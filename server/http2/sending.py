"""Frames of one connection on their way out, as far as the windows of the peer allow.

Of what a connection sends, its transport holds little more than PART_BYTES. Answers to pings and
settings wait for no window; a peer that makes many and reads none loses its connection.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Any, Final

from braid.server.http2 import frames
from braid.server.http2.frames import ConnectionFault, ErrorCode, frame_head, number_frame
from braid.server.http2.messages import PREFIX_BYTES

PART_BYTES: Final = 1 << 20
"""Bytes given to the transport at once."""
LEAST_BYTES: Final = 1 << 10
"""Shortest frame that earns the peer others: a message that is taken in small pieces earns one."""
MAX_UNREAD_CONTROL_BYTES: Final = 1 << 16
"""Answers to pings and settings that a peer may leave unread."""

_PREFIX: Final = struct.Struct("!BI").pack  # of a message: whether it is compressed, and its length


@dataclass(slots=True, eq=False)
class Outgoing:
    """Answer of one stream."""

    number: int
    window: int = 0  # bytes that the peer takes beyond the initial window; negative: fewer
    has_ended: bool = False  # by either side: nothing more is sent
    is_answered: bool = False  # the status is on its way
    waiter: asyncio.Future[None] | None = None
    waits_in: dict[Outgoing, None] | None = None


class Sender:
    """Writer of one connection's frames. Belongs to the event loop."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._initial_window = frames.USUAL_WINDOW_BYTES
        self.frame_bytes = frames.USUAL_FRAME_BYTES
        self._window = frames.USUAL_WINDOW_BYTES
        self._is_paused = False
        # Answers that wait, the longest first, each in one of these:
        self._stuck: dict[Outgoing, None] = {}  # for the window of their stream
        self._waiting: dict[Outgoing, None] = {}  # for that of the connection, or its transport
        self._draining: dict[Outgoing, None] = {}  # for the transport, with nothing to send
        self._unread_control_bytes = 0
        self.data_frames = 0  # sent so far, but for small pieces
        self._has_left = False  # nothing follows what was sent last

    async def send(self, to: Outgoing, begin: bytes, message: bytes | None, end: bytes) -> None:
        """Send parts of an answer; returns when the last byte is on its way, or has nowhere to go.

        ``begin`` and ``end`` are header blocks; empty: was sent, or the answer goes on.
        """
        parts: list[bytes | memoryview] = []
        if begin:
            parts += (frame_head(frames.HEADERS, frames.END_HEADERS, to.number, len(begin)), begin)
        try:
            if message is not None:
                await self._send_message(to, parts, message)
            if end:
                flags = frames.END_HEADERS | frames.END_STREAM
                parts += (frame_head(frames.HEADERS, flags, to.number, len(end)), end)
            self._write(to, parts)
            to.is_answered = bool(end) and not to.has_ended
            while self._is_paused and not to.has_ended:
                await self._change(to, self._draining)
        finally:
            if self._waiting:
                self._share()
        if end:
            to.has_ended = True

    async def _send_message(
        self, to: Outgoing, parts: list[bytes | memoryview], message: bytes
    ) -> None:
        """Add a message to ``parts`` in frames, and send what the windows have no room beside."""
        length, held = len(message), 0
        pieces = [memoryview(_PREFIX(0, length)), memoryview(message)]
        left = length + PREFIX_BYTES
        while left and not to.has_ended:
            size = min(left, self._initial_window + to.window, self._window, self.frame_bytes)
            if self._is_paused or size <= 0 or held >= PART_BYTES:
                self._write(to, parts)
                parts.clear()
                held = 0
                if self._is_paused or size <= 0:
                    room = self._initial_window + to.window
                    await self._change(to, self._waiting if room > 0 else self._stuck)
                continue
            parts.append(frame_head(frames.DATA, 0, to.number, size))
            parts += pieces if size == left else _cut(pieces, size)
            left -= size
            held += size
            to.window -= size
            self._window -= size
            self.data_frames += not left or size >= LEAST_BYTES

    def _write(self, to: Outgoing, parts: list[bytes | memoryview]) -> None:
        if parts and not to.has_ended and not self.is_over:
            self.transport.write(b"".join(parts))

    def control(self, data: bytes) -> None:
        """Send a frame that waits for no window; ends a connection that reads none of them."""
        if self._is_paused:
            self._unread_control_bytes += len(data)
            if self._unread_control_bytes > MAX_UNREAD_CONTROL_BYTES:
                self.transport.abort()
        if not self.is_over:
            self.transport.write(data)

    @property
    def is_over(self) -> bool:
        return self._has_left or bool(self.transport.is_closing())

    def leave_with(self, data: bytes) -> None:
        """Send a last frame; the peer may still be sending."""
        self.control(data)
        if not self.is_over:
            self._has_left = True
            if self.transport.can_write_eof():  # TLS cannot be ended on one side
                self.transport.write_eof()

    def reset(self, number: int, code: ErrorCode) -> None:
        self.control(number_frame(frames.RST_STREAM, number, code))

    def grow(self, to: Outgoing | None, more: int) -> None:
        """Let ``more`` bytes be sent on a stream; None: on all of them."""
        before = self._window if to is None else self._initial_window + to.window
        if before + more > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        if to is not None:
            to.window += more
            if to in self._stuck:
                self._wake_one(to)
        else:
            self._window += more
            if before <= 0:  # else nobody waits for this window
                self._share()

    def begin_with(self, window: int) -> None:
        """Set the initial window of all streams, those there are too, however many these are."""
        if window > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        is_more = window > self._initial_window
        self._initial_window = window
        if is_more:
            for to in [each for each in self._stuck if window + each.window > 0]:
                self._move(to, self._waiting)
            self._share()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._unread_control_bytes = 0
        for to in list(self._draining):
            self._wake_one(to)
        self._share()

    def wake(self) -> None:
        """Wake all answers, as the connection is lost."""
        for to in (*self._stuck, *self._waiting, *self._draining):
            self._wake_one(to)

    def leave(self, to: Outgoing) -> None:
        """Send nothing more of an answer."""
        to.has_ended = True
        if self._stuck or self._waiting or self._draining:
            self._wake_one(to)
            self._share()

    def _share(self) -> None:
        """Wake as many answers as the window of the connection has room for.

        Whoever is woken uses its part, or shares what is left at its end: one update of a window
        does not wake a thousand answers of which one can go on.
        """
        room = self._window
        while self._waiting and room > 0 and not self._is_paused:
            to = next(iter(self._waiting))
            own_room = self._initial_window + to.window
            if own_room > 0:
                self._wake_one(to)
                room -= min(own_room, self.frame_bytes)
            else:
                self._move(to, self._stuck)

    def _wake_one(self, to: Outgoing) -> None:
        waiter, to.waiter = to.waiter, None
        if waiter is not None:
            self._move(to, None)
            waiter.set_result(None)

    async def _change(self, to: Outgoing, waiting: dict[Outgoing, None]) -> None:
        self._move(to, waiting)
        if to.waiter is None:
            to.waiter = asyncio.get_running_loop().create_future()
        await asyncio.shield(to.waiter)

    def _move(self, to: Outgoing, waiting: dict[Outgoing, None] | None) -> None:
        if to.waits_in is not None:
            del to.waits_in[to]
        to.waits_in = waiting
        if waiting is not None:
            waiting[to] = None


def _cut(pieces: list[memoryview], size: int) -> list[memoryview]:
    taken: list[memoryview] = []
    while size:
        taken.append(pieces[0][:size])
        pieces[0] = pieces[0][size:]
        size -= len(taken[-1])
        if not pieces[0]:
            del pieces[0]
    return taken
