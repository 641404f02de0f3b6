"""Answers of inference on their way out: bytes that are there, or text that is written meanwhile.

The text of a large tensor is never there as a whole. What is held for a caller who reads slowly is
the tensor, which is charged to the connection (``braid.server.inference.call_memory``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from braid.core.pieces import PIECE_BYTES, Turns, Work
from braid.server.servicers.rest.encodings import (
    SMALL_BYTES,
    accepted,
    encoded,
    encoded_pieces,
)
from braid_client.wire_fields import Part


@dataclass(frozen=True, slots=True)
class Written:
    """Answer that is sent in pieces, and may be written meanwhile."""

    pieces: Callable[[], Iterator[Part]]  # from the beginning, each time
    held_bytes: int  # of memory, until the last one is sent
    size_bytes: int | None = None  # None: not known before they are made

    def __len__(self) -> int:
        return self.held_bytes


def measured(pieces: Iterator[Part]) -> Work[int]:
    """Count the bytes of all pieces, as work that yields after each piece."""
    size = 0
    for piece in pieces:
        size += len(piece)
        yield
    return size


async def response_of(
    reply: bytes | Written, is_binary: bool, request: Request, headers: dict[str, str], turns: Turns
) -> Response:
    """Return the response that sends a reply; its encoding is added to ``headers``."""
    kind = "application/octet-stream" if is_binary else "application/json"
    encoding = accepted(request.headers.get("accept-encoding", ""), is_binary)
    is_old = request.scope["http_version"] == "1.0"  # knows no body without a length
    if len(reply) <= SMALL_BYTES or (is_old and isinstance(reply, Written)):
        encoding = ""
    if encoding:
        headers |= {"content-encoding": encoding, "vary": "accept-encoding"}
    if isinstance(reply, bytes):
        if encoding:
            reply = await encoded(reply, encoding)
        if len(reply) <= PIECE_BYTES:
            return Response(reply, HTTPStatus.OK, headers, kind)
        headers["content-length"] = str(len(reply))
        return _InPieces(_slices(reply), HTTPStatus.OK, headers, kind)
    pieces, size = turns.each(reply.pieces()), reply.size_bytes
    if encoding:
        return _InPieces(encoded_pieces(pieces, encoding), HTTPStatus.OK, headers, kind)
    if size is None and is_old:
        size = await turns.finish(measured(reply.pieces()))
    if size is not None:
        headers["content-length"] = str(size)
    return _InPieces(pieces, HTTPStatus.OK, headers, kind)


class _InPieces(StreamingResponse):
    """Response whose pieces are made as there is room for them.

    Callers that leave cancel it: nothing has to listen for that meanwhile. The last piece ends the
    answer: its caller may send the next request as soon as it is there.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        last: Any = b""
        async for piece in self.body_iterator:
            if last:
                await send({"type": "http.response.body", "body": last, "more_body": True})
            last = piece
        await send({"type": "http.response.body", "body": last})


async def _slices(whole: bytes) -> AsyncIterator[Part]:
    view = memoryview(whole)
    for at in range(0, len(whole), PIECE_BYTES):
        yield view[at : at + PIECE_BYTES]
