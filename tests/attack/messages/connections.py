"""Connections of HTTP/2 that mean harm, frame by frame; each needs no token.

open ──> Wire: frames sent, windows followed ──> what the server said, or that it hung up
"""

import contextlib
import select
import socket
import struct
import time
import zlib
from collections.abc import Callable

from braid.server.http2 import frames
from braid.server.http2.answer_headers import literal
from braid.server.http2.frames import frame, settings_frame

HEALTH = "/grpc.health.v1.Health/Check"
INFER = "/braid.v1.InferenceService/Infer"
MIB = 1 << 20
SECONDS = 60.0


def head(path: str, *more: tuple[str, str]) -> bytes:
    """Header block of a call."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "here"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    )
    return b"".join(literal(name.encode(), value.encode()) for name, value in fields)


class Wire:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self._unread = b""
        self.is_closed = False
        self.seen: list[tuple[int, int, int, bytes]] = []  # but windows, pings and settings
        self._windows = {0: frames.USUAL_WINDOW_BYTES}
        self._initial = frames.USUAL_WINDOW_BYTES
        self.send(frames.PREFACE + settings_frame({}))
        while not self._unread and not self.is_closed and self._initial == 65_535:
            self.read(1.0)

    def send(self, data: bytes) -> None:
        """Send bytes; a server that has hung up is no failure."""
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True

    def headers(self, number: int, block: bytes, flags: int = frames.END_HEADERS) -> None:
        self._windows.setdefault(number, self._initial)
        self.send(frame(frames.HEADERS, flags, number, block))

    def data(self, number: int, data: bytes, *, is_last: bool = False) -> int:
        """Send as much as the windows let in; returns how much that was."""
        size = min(len(data), self._windows[0], self._windows.get(number, 0), 16_384)
        if size <= 0:
            return 0
        self._windows[0] -= size
        self._windows[number] -= size
        flags = frames.END_STREAM if is_last and size == len(data) else 0
        self.send(frame(frames.DATA, flags, number, data[:size]))
        return size

    def send_all(self, number: int, data: bytes) -> None:
        """Send a message and the end of its stream, as long as the server lets it in."""
        deadline = time.monotonic() + SECONDS
        while data and not self.is_closed and time.monotonic() < deadline:
            sent = self.data(number, data, is_last=True)
            data = data[sent:]
            self.read(0.0 if sent else 0.2)
            if any(kind == frames.RST_STREAM and of == number for kind, _, of, _ in self.seen):
                return

    def status(self, number: int) -> int | None:
        """Status of a call, once it is there; None: the connection or the stream has ended."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for kind, _, of, payload in self.seen:
                if of == number and kind == frames.HEADERS and b"grpc-status" in payload:
                    at = payload.index(b"grpc-status") + len("grpc-status")
                    return int(payload[at + 1 : at + 1 + payload[at]])
            if self.is_closed:
                return None
            self.read(0.5)
        raise AssertionError("no answer")

    def read(self, seconds: float) -> None:
        """Handle what comes within some seconds."""
        if self.is_closed or not select.select([self._socket], [], [], seconds)[0]:
            return
        data = b""
        with contextlib.suppress(OSError):
            data = self._socket.recv(1 << 18)
        self.is_closed = not data
        self._unread += data
        while len(self._unread) >= frames.HEAD_BYTES:
            length_and_kind, flags, number = struct.unpack_from("!IBI", self._unread)
            end = frames.HEAD_BYTES + (length_and_kind >> 8)
            if len(self._unread) < end:
                return
            payload, self._unread = self._unread[frames.HEAD_BYTES : end], self._unread[end:]
            self._handle(length_and_kind & 0xFF, flags, number, payload)

    def _handle(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._windows[number] = self._windows.get(number, 0) + int.from_bytes(payload, "big")
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            named = dict(struct.iter_unpack("!HI", payload))
            self._initial = named.get(frames.INITIAL_WINDOW_SIZE, self._initial)
            self.send(frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.PING and not flags & frames.ACK:
            self.send(frame(frames.PING, frames.ACK, 0, payload))
        else:
            self.seen.append((kind, flags, number, payload))

    @property
    def fault(self) -> int | None:
        """Why the server ended the connection; None: it did not say."""
        gone = [payload for kind, _, _, payload in self.seen if kind == frames.GOAWAY]
        return int.from_bytes(gone[-1][4:8], "big") if gone else None

    def close(self) -> None:
        self._socket.close()


def bomb(encoding: str, size: int) -> bytes:
    """Message of zeros that is a thousandth as long."""
    packed = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15}[encoding])
    parts = [packed.compress(bytes(MIB)) for _ in range(size // MIB)]
    body = b"".join([*parts, packed.flush()])
    return b"\1" + len(body).to_bytes(4, "big") + body


def half_message(wire: Wire, number: int, size: int, path: str = INFER) -> Callable[[], bool]:
    """Begin a message whose last byte never comes; call to send on: whether there was room."""
    wire.headers(number, head(path))
    wire.data(number, b"\0" + size.to_bytes(4, "big"))
    left = [size - 1]

    def send_on() -> bool:
        sent = wire.data(number, bytes(min(left[0], 16_384)))
        left[0] -= sent
        return sent > 0

    return send_on
