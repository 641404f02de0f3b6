"""Bytes of one connection, cut into frames; data of large messages is received where it belongs.

A frame of DATA is passed on as its bytes come; every other frame is short and passed on whole.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from braid.server.http2 import frames
from braid.server.http2.frames import ConnectionFault, ErrorCode
from braid.server.http2.messages import Incoming
from braid.server.http2.request_headers import MAX_BLOCK_BYTES

if TYPE_CHECKING:
    from braid.server.http2.connection import HttpConnection

DATA_FRAME_BYTES: Final = 1 << 20
"""Most bytes of a frame of DATA; others, but headers, are as short as every peer sends them."""
BUFFER_BYTES: Final = 1 << 15
WORK_FRAMES, WORK_BYTES = 16, 64
"""Frames after which the time is looked at; of others than DATA, so many bytes count as one."""

_MOST_BYTES: Final = {
    **dict.fromkeys(range(frames.CONTINUATION + 1), frames.USUAL_FRAME_BYTES),
    **dict.fromkeys((frames.HEADERS, frames.CONTINUATION), MAX_BLOCK_BYTES),
}
"""Longest frames that are read; those of unknown kinds are skipped."""

_HEAD = struct.Struct("!IBI").unpack_from


class Receiver:
    """Reader of one connection's bytes."""

    def __init__(self, target: HttpConnection) -> None:
        self._target = target
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._stop = 0  # of the unread bytes in the buffer
        self._is_in_place = False  # what comes next belongs into a message, not into the buffer
        self._has_preface = False
        self._is_in_data = False
        self._data: Incoming | None = None  # messages that the present frame of DATA is for
        self._number = self._data_left = self._padding_left = 0
        self._is_last = False
        self._long: bytearray | None = None  # payload of a frame longer than the buffer may hold
        self._long_head = (0, 0, 0)  # its kind, flags and stream
        self._long_left = 0
        self._work = 0  # frames since the time was looked at

    @property
    def held_bytes(self) -> int:
        return 0 if self._long is None else len(self._long)

    def place(self) -> memoryview:
        """Return where the next bytes are to be received; never empty."""
        if self._is_in_place and self._data is not None:
            place = self._data.place()  # none: the message was given up
            if place is not None:
                return place[: self._data_left]
        self._is_in_place = False
        return self._buffer[self._stop :]

    def received(self, size_bytes: int) -> bool:
        """Read bytes that were received where ``place`` said; returns False if there was no time.

        The rest is read by the next call, for 0 bytes more. Raises ConnectionFault: the peer broke
        the protocol.
        """
        if self._is_in_place and self._data is not None:
            self._data.received(size_bytes)
            self._data_left -= size_bytes
        else:
            self._stop += size_bytes
        is_whole = has_time = True
        while is_whole:
            if self._work >= WORK_FRAMES:
                self._work = 0
                if not (has_time := self._target.has_time()):
                    break
            if self._is_in_data:
                is_whole = self._read_data()
            elif self._long is not None:
                is_whole = self._read_long(self._long)
            elif not self._has_preface:
                is_whole = self._read_preface()
            elif self._stop - self._start >= frames.HEAD_BYTES:
                is_whole = self._read_frame()
            else:
                break
        left = self._stop - self._start
        if left:
            self._buffer[:left] = self._buffer[self._start : self._stop]
        self._start, self._stop = 0, left
        self._is_in_place = not left and self._data_left > 0 and self._data is not None
        return has_time

    def forget(self) -> None:
        """Drop what was received; what comes from now on must not be read."""
        self._is_in_place = False
        self._start = self._stop = 0

    def _read_frame(self) -> bool:
        """Read a frame, or begin to; returns True if there may be more to read."""
        at = self._start
        length_and_kind, flags, number = _HEAD(self._buffer, at)
        length, kind = length_and_kind >> 8, length_and_kind & 0xFF
        number &= frames.MAX_WINDOW_BYTES
        self._work += 1
        if kind == frames.DATA:
            return self._begin_data(length, flags, number)
        if length > frames.USUAL_FRAME_BYTES:
            if length > _MOST_BYTES.get(kind, DATA_FRAME_BYTES):
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is too long")
            self._start += frames.HEAD_BYTES
            self._long, self._long_left = bytearray(), length
            self._long_head = kind, flags, number
            return True
        begin = at + frames.HEAD_BYTES
        if begin + length > self._stop:
            return False
        self._start = begin + length
        self._work += length // WORK_BYTES
        self._target.take_frame(kind, flags, number, bytes(self._buffer[begin : self._start]))
        return True

    def _read_long(self, payload: bytearray) -> bool:
        """Read what has come of a long frame; returns True if the frame is whole."""
        taken = min(self._stop - self._start, self._long_left)
        if self._long_head[0] <= frames.CONTINUATION:  # of frames of unknown kinds nothing is kept
            payload += self._buffer[self._start : self._start + taken]
        self._start += taken
        self._long_left -= taken
        if self._long_left:
            return False
        self._long = None
        self._work += len(payload) // WORK_BYTES
        self._target.take_frame(*self._long_head, bytes(payload))
        return True

    def _read_preface(self) -> bool:
        size = min(len(frames.PREFACE), self._stop)
        if self._buffer[:size] != frames.PREFACE[:size]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
        self._has_preface = size == len(frames.PREFACE)
        self._start = size if self._has_preface else 0
        return self._has_preface

    def _begin_data(self, length: int, flags: int, number: int) -> bool:
        if length > DATA_FRAME_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is too long")
        at, padding = self._start + frames.HEAD_BYTES, 0
        self._data_left = length
        if flags & frames.PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is cut off")
            if at == self._stop:
                return False
            padding = self._buffer[at]
            if padding >= length:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
            at += 1
            self._data_left -= 1 + padding
        self._data = self._target.begin_data(number, length, length - self._data_left)
        self._start, self._number, self._padding_left = at, number, padding
        self._is_last = bool(flags & frames.END_STREAM)
        self._is_in_data = True
        return self._read_data()

    def _read_data(self) -> bool:
        """Read what has come of a frame of DATA; returns True if the frame is whole."""
        taken = min(self._stop - self._start, self._data_left)
        if taken:
            if self._data is not None:
                self._data.feed(self._buffer[self._start : self._start + taken])
            self._start += taken
            self._data_left -= taken
        if self._padding_left:
            skipped = min(self._stop - self._start, self._padding_left)
            self._start += skipped
            self._padding_left -= skipped
        if self._data_left or self._padding_left:
            return False
        self._is_in_data, self._data = False, None
        self._target.end_data(self._number, self._is_last)
        return True
