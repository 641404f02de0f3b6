"""HTTP requests and responses, read and written on asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 16 * 1024
MAX_FORM_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """HTTP request, as routes get it."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""  # of a POST
    peer: str = ""  # address of the caller


@dataclass(frozen=True, slots=True)
class Response:
    """HTTP response with its whole body."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()  # more of them


Route = Callable[[Request], Awaitable[Response]]


def text(message: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response of one line of text."""
    return Response(f"{message}\n".encode(), status)


class BadRequest(Exception):
    """Error of a request that cannot be answered; ``status`` says why."""

    def __init__(self, status: HTTPStatus, message: str = "") -> None:
        super().__init__(message or status.phrase)
        self.status = status


async def read_request(reader: asyncio.StreamReader, peer: str) -> Request:
    """Read a request; only a POST's body is read."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or (name in headers and name in ("host", "content-length")):
            raise BadRequest(HTTPStatus.BAD_REQUEST)
        headers[name] = value.strip()
    body = await _read_body(reader, headers) if parts[0] == "POST" else b""
    with contextlib.suppress(ValueError):
        target = urlsplit(parts[1])
        return Request(parts[0], target.path, target.query, headers, body, peer)
    raise BadRequest(HTTPStatus.BAD_REQUEST)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    """Read the body of a form, whose headers must give its length."""
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
        raise BadRequest(HTTPStatus.LENGTH_REQUIRED)
    if len(length) > 9 or int(length) > MAX_FORM_BYTES:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return await reader.readexactly(int(length))


def write_head(response: Response) -> bytes:
    """Return the status line and the headers."""
    lines = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "Connection: close",
        *(f"{name}: {value}" for name, value in response.headers),
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
