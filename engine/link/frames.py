"""Frames on the Unix sockets between the front end and a worker.

    frame = 4-byte little-endian length, then a message (messages.py) as MessagePack,
            whose integers have 64 bits

Each inference sends a call and its answer: to write and read both takes 2 us. It is never pickle:
neither side may run code that the other one sends.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from braid.core.json_form import plain
from braid.engine.link.messages import Message

_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
MAX_FRAME_BYTES = 256 << 20  # a graph of 10^5 operators is about 30 MB


def encode(message: Message) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages; keeps the bytes of an incomplete one."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield complete messages; ``ValueError`` for frames over the limit or no message."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        try:
            while size - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise ValueError(f"frame of {length} bytes is over {MAX_FRAME_BYTES}")
                end = start + _LENGTH.size + length
                if size < end:
                    break
                message = _DECODER.decode(buffer[start + _LENGTH.size : end])
                start = end
                yield message
        except msgspec.DecodeError as error:
            raise ValueError(f"no message: {error}") from None
        finally:
            del buffer[:start]


class BlockingChannel:
    """A socket whose calls block; one end of a link."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._decoder = FrameDecoder()

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[Message] | None:
        """Wait for bytes; returns the messages that they complete, None at the stream's end.

        A peer that was killed with messages unread resets the stream, which ends it, too.
        """
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionError:
            return None
        if not data:
            return None
        return list(self._decoder.feed(data))

    def send(self, message: Message) -> None:
        """Send from any thread; blocks while the peer is slow, and does nothing if it is gone."""
        frame = encode(message)
        with self._sending, suppress(ConnectionError):
            self._socket.sendall(frame)
