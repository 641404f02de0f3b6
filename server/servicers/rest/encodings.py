"""Compressed bodies: gzip and deflate (in zlib's format, as HTTP says), both ways.

Libraries offer compression by themselves, and a tensor of floats costs far more time to compress
than it saves: binary tensors are compressed for callers that name one encoding and nothing else.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException

from braid.core.pieces import in_steps, joined
from braid_client.wire_fields import Part

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_LEVEL = 1  # tensors hardly shrink further

SMALL_BYTES = 1 << 10
"""Bodies up to this size are not worth compressing."""

QUICK_BYTES = 64 << 10
"""Bodies up to this size are compressed in the event loop, larger ones in a thread."""

PIECE_BYTES = 1 << 20
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
    for at in range(0, len(body), PIECE_BYTES):
        rest, part = body[at : at + PIECE_BYTES], b""
        while rest or len(part) == PIECE_BYTES:
            try:
                part = await asyncio.to_thread(stream.decompress, rest, PIECE_BYTES)
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
