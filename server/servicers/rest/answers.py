"""Answers of inference on their way out, and bodies compressed by gzip or deflate, both ways.

An answer is bytes that are there, or text that is written meanwhile.
The text of a large tensor is never there as a whole. What is held for a caller who reads slowly is
the tensor, which is charged to the connection (``braid.server.inference.call_memory``).

Libraries offer compression by themselves, and a tensor of floats costs far more time to compress
than it saves: binary tensors are compressed for callers that name one encoding and nothing else.
Deflate is in zlib's format, as HTTP says.
"""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from braid.core.pieces import PIECE_BYTES, Turns, Work, in_steps, joined
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


_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_LEVEL = 1  # tensors hardly shrink further

SMALL_BYTES = 1 << 10
"""Bodies up to this size are not worth compressing."""

QUICK_BYTES = 64 << 10
"""Bodies up to this size are compressed in the event loop, larger ones in a thread."""

INFLATED_BYTES = 1 << 20
"""Bytes that a thread inflates at once."""


async def decoded(
    body: bytes, encoding: str, limit_bytes: int, hold: Callable[[int], None] = lambda _: None
) -> bytes:
    """Return what a request's body contains; bodies are inflated piece by piece, in turns.

    ``hold`` is told the bytes that are held after each piece. Raises HTTPException: the encoding is
    not known, or the content broken or too large.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WINDOW_BITS:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding {name[:40]!r} is not known; there are gzip and deflate",
        )
    return await _inflated(body, name, limit_bytes, hold)


async def _inflated(body: bytes, name: str, limit_bytes: int, hold: Callable[[int], None]) -> bytes:
    stream, parts, size = zlib.decompressobj(_WINDOW_BITS[name]), list[bytes](), 0
    for at in range(0, len(body), INFLATED_BYTES):
        rest, part = body[at : at + INFLATED_BYTES], b""
        while rest or len(part) == INFLATED_BYTES:
            try:
                part = await asyncio.to_thread(stream.decompress, rest, INFLATED_BYTES)
            except zlib.error:
                raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not {name}") from None
            rest, size = stream.unconsumed_tail, size + len(part)
            if size > limit_bytes:
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"the body has more than {limit_bytes} bytes when it is decompressed",
                )
            hold(len(body) + size)
            parts.append(part)
        if stream.unused_data:
            break
    if not stream.eof or stream.unused_data:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not one whole {name} stream")
    hold(size)
    return await in_steps(joined(parts))


def accepted(header: str, is_binary: bool) -> str:
    """Encoding of an answer for an Accept-Encoding ``header``; "" for none."""
    wanted = []
    for offer in header[:1024].lower().split(","):
        name, _, quality = (part.strip() for part in offer.partition(";"))
        if name and quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            wanted.append(name)
    encodings = [name for name in ("gzip", "deflate") if name in wanted]
    if not encodings or (is_binary and len(wanted) > 1):
        return ""
    return encodings[0]


async def encoded(body: bytes, encoding: str) -> bytes:
    if len(body) <= QUICK_BYTES:
        return _deflated(body, encoding)
    return await asyncio.to_thread(_deflated, body, encoding)


async def encoded_pieces(pieces: AsyncIterator[Part], encoding: str) -> AsyncIterator[Part]:
    stream = zlib.compressobj(_LEVEL, wbits=_WINDOW_BITS[encoding])
    async for piece in pieces:
        if compressed := await asyncio.to_thread(stream.compress, piece):
            yield compressed
    yield stream.flush()


def _deflated(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.compress(body, _LEVEL, mtime=0)
    return zlib.compress(body, _LEVEL)
