"""Bodies of requests, read up to a limit."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request

FORM_BYTES = 8 * 1024


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: it is larger than ``limit_bytes``, whether or not its headers say so.
    """
    too_large = HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body here has at most {limit_bytes} bytes"
    )
    length = request.headers.get("content-length", "0")  # digits: the parser has seen to that
    if len(length) > 18 or int(length) > limit_bytes:
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
