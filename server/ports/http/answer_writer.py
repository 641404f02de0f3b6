"""Writer of one answer: its head leaves together with the first part of its body.

uvicorn writes both apart. A caller that waits is woken by the head, finds no body, and waits
again: of an answer of 4 KB, that was the tenth part of a call's time.
"""

from __future__ import annotations

from asyncio import Transport

JOINED_BYTES = 64 << 10
"""Largest part of a body that is copied behind its head; a larger one is written by itself."""

_CONTINUE = b"HTTP/1.1 100 "


class AnswerWriter:
    """What uvicorn uses of a transport while it answers one request."""

    __slots__ = ("_head", "_is_begun", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._head = b""
        self._is_begun = False

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
