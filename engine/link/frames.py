"""Frames on the Unix sockets between the front end and a worker.

    frame = 4-byte little-endian length, then a message (messages.py):
              { ...                                    a JSON object
              1 │ call │ executable │ slot's offset │ whether its inputs are finite │ program
              2 │ call │ microseconds                  the answer to it

1 is a call to run an executable; numbers have 8 bytes, a bool has one, and the program is JSON, or
nothing where the executable has one of its own. Each inference sends a 1 and a 2: to write and read
both takes 20 us as JSON and 4 us as records. Programs are those of the latest shapes again and
again, so their JSON is remembered. Everything else is JSON, and never pickle: neither side may run
code that the other one sends.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from braid.core.json_form import from_json, to_json, to_tagged_json
from braid.core.program import ProgramKey
from braid.engine.link.messages import Message, RunDone, RunExecutable, WorkerAnswer, WorkerCall

_LENGTH = struct.Struct("<I")
_RUN, _RUN_KIND = struct.Struct("<IBQQQ?"), 1
_DONE, _DONE_KIND = struct.Struct("<IBQQ"), 2
_to_text = json.JSONEncoder(separators=(",", ":")).encode
MAX_PROGRAMS = 512  # programs whose JSON is remembered, written or read

MAX_FRAME_BYTES = 256 << 20  # a graph of 10^5 operators is about 30 MB


def encode(message: Message) -> bytes:
    if type(message) is WorkerCall and type(run := message.request) is RunExecutable:
        program = b"" if run.program is None else _program_text(run.program)
        body_bytes = _RUN.size - _LENGTH.size + len(program)
        words = message.number, run.number, run.offset, run.is_finite
        return _RUN.pack(body_bytes, _RUN_KIND, *words) + program
    if type(message) is WorkerAnswer and type(done := message.reply) is RunDone:
        body_bytes = _DONE.size - _LENGTH.size
        return _DONE.pack(body_bytes, _DONE_KIND, message.call, done.compute_us)
    body = _to_text(to_tagged_json(message)).encode()
    return _LENGTH.pack(len(body)) + body


@lru_cache(MAX_PROGRAMS)
def _program_text(program: ProgramKey) -> bytes:
    return _to_text(to_json(program)).encode()


@lru_cache(MAX_PROGRAMS)
def _program(text: bytes) -> ProgramKey:
    return from_json(ProgramKey, json.loads(text))


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
                message = _decode(buffer, start, end)
                start = end
                yield message
        finally:
            del buffer[:start]


def _decode(buffer: bytearray, start: int, end: int) -> Message:
    size = end - start
    if size >= _RUN.size and buffer[start + _LENGTH.size] == _RUN_KIND:
        _, _, call, number, offset, is_finite = _RUN.unpack_from(buffer, start)
        program = _program(bytes(buffer[start + _RUN.size : end])) if size > _RUN.size else None
        return WorkerCall(call, RunExecutable(number, offset, is_finite, program))
    if size == _DONE.size and buffer[start + _LENGTH.size] == _DONE_KIND:
        _, _, call, compute_us = _DONE.unpack_from(buffer, start)
        return WorkerAnswer(call, RunDone(compute_us))
    message: Message = from_json(Message, json.loads(buffer[start + _LENGTH.size : end].decode()))
    return message


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
