"""Requests: their bodies, read up to a limit, and whether another site's page sent them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from braid.core.errors import ResourceExhausted

FORM_BYTES = 8 * 1024


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: it is larger than ``limit_bytes``, whether or not its headers say so.
    """
    too_large = HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body here has at most {limit_bytes} bytes"
    )
    if (_length(request) or 0) > limit_bytes:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def read_form(request: Request) -> bytes:
    """Return the body of a form, whose headers must give its length.

    Raises:
        HTTPException: they do not, or it is larger than FORM_BYTES.
    """
    if "transfer-encoding" in request.headers:
        raise HTTPException(HTTPStatus.LENGTH_REQUIRED)
    return await read_body(request, FORM_BYTES)


def _length(request: Request) -> int | None:
    length = request.headers.get("content-length")  # digits: the parser has seen to that
    return None if length is None else int(length[:20])


class BodyRoom:
    """Room for the bodies that are being received, of all connections together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

    @contextmanager
    def reading(self, request: Request, most_bytes: int) -> Iterator[None]:
        """Hold room for a body while it is received.

        Args:
            request: whose body it is.
            most_bytes: held for a body whose length its headers do not give.

        Raises:
            ResourceExhausted: there is no room.
        """
        length = _length(request)
        size = most_bytes if length is None else min(length, most_bytes)
        if self._held_bytes and self._held_bytes + size > self._limit_bytes:
            raise ResourceExhausted(
                "the bodies that are being received take all memory for them", 0.1
            )
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size


def is_from_here(request: Request) -> bool:
    """True if no page of another site sent a request, as far as its browser tells."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        return False
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc == request.headers.get("host")
    except ValueError:  # no URL
        return False
