"""Frames on the Unix sockets between the front end and a worker.

    frame = 4-byte little-endian length, then a message (messages.py) as a JSON object

JSON and not pickle: neither side may run code that the other one sends.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

from braid.core.json_form import from_json, to_tagged_json
from braid.engine.link.messages import Message

_LENGTH = struct.Struct("<I")
_to_text = json.JSONEncoder(separators=(",", ":")).encode
MAX_FRAME_BYTES = 256 << 20  # a graph of 10^5 operators is about 30 MB


def encode(message: Message) -> bytes:
    """Return the frame of a message."""
    body = _to_text(to_tagged_json(message)).encode()
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages; keeps the bytes of an incomplete one."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield each message completed by ``data``.

        Raises:
            ValueError: the peer sent a frame over the limit, or one that is no message.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise ValueError(f"frame of {length} bytes is over {MAX_FRAME_BYTES}")
                end = start + _LENGTH.size + length
                if len(buffer) < end:
                    break
                text = buffer[start + _LENGTH.size : end].decode()
                start = end
                yield from_json(Message, json.loads(text))
        finally:
            del buffer[:start]


class BlockingChannel:
    """A socket whose calls block; one end of a link."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = FrameDecoder()

    def fileno(self) -> int:
        """File descriptor, for ``select.poll``."""
        return self._socket.fileno()

    def receive(self) -> list[Message] | None:
        """Wait for bytes; returns the messages that they complete, None at the stream's end."""
        data = self._socket.recv(1 << 20)
        if not data:
            return None
        return list(self._decoder.feed(data))

    def send(self, message: Message) -> None:
        """Send one message; blocks while the peer is slow."""
        self._socket.sendall(encode(message))
