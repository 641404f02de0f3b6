"""Layout of HTTP/2 frames and settings (RFC 9113, sections 4, 6 and 7)."""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
USUAL_FRAME_BYTES: Final = 16_384
USUAL_WINDOW_BYTES: Final = 65_535
MAX_WINDOW_BYTES: Final = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20

ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6


class ErrorCode(IntEnum):
    """Reason why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The peer broke the protocol; the connection ends."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(kind, flags, stream, len(payload)) + payload


def frame_head(kind: int, flags: int, stream: int, length: int) -> bytes:
    """Return the nine bytes before a payload of ``length`` bytes."""
    return _HEAD(length << 8 | kind, flags, stream)


_HEAD = struct.Struct("!IBI").pack


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack("!HI", *pair) for pair in values.items()))


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """Return a frame whose payload is one number: WINDOW_UPDATE or RST_STREAM."""
    return frame(kind, 0, stream, number.to_bytes(4, "big"))


def goaway_frame(last_stream: int, code: ErrorCode, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack("!II", last_stream, code) + reason.encode())
