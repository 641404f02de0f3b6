"""Requests: their bodies, read up to a limit, and whether another site's page sent them."""

from __future__ import annotations

import asyncio
from collections import Counter
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from braid.core.errors import ResourceExhausted
from braid.core.pieces import in_steps, joined
from braid.server.security.tokens import owner_in

FORM_BYTES = 8 * 1024
"""Most of a form, and of a body that nobody reads."""
SHORT_BYTES = 1 << 20
CREDIT_BYTES = 4 << 20


async def read_body(request: Request, limit_bytes: int, body: Body | None = None) -> bytes:
    """Return the body of a request, and count in ``body`` what has come of it.

    Raises:
        HTTPException: it is larger than ``limit_bytes``, whether or not its headers say so.
        ResourceExhausted: it gave way to others.
    """
    check_length(request, limit_bytes)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if body is not None:
            body.hold(size)
        parts.append(part)
    return await in_steps(joined(parts))


def check_length(request: Request, limit_bytes: int) -> None:
    """Raise HTTPException if the headers tell of a longer body."""
    if (_length(request) or 0) > limit_bytes:
        raise _too_large(limit_bytes)


def _too_large(limit_bytes: int) -> HTTPException:
    return HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body here has at most {limit_bytes} bytes"
    )


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
    """Room for the bodies of all connections, from their first byte until they are answered.

    body ──hold──> within the limit: it is received on
              └──> beyond: of the caller that holds most, the body that comes slowest gives way

    Short bodies have a quarter of the room for themselves.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._rooms = (_Room(limit_bytes // 4), _Room(limit_bytes * 3 // 4))

    def reading(self, request: Request) -> Body:
        """Return the body of a request, to be entered while it is held.

        Raises ResourceExhausted within: it gave way.
        """
        length = _length(request)
        is_short = length is not None and length <= SHORT_BYTES
        is_long = not is_short or "content-encoding" in request.headers
        caller = owner_in(request.headers) or request.state.connection.place.network
        return Body(self._rooms[is_long], caller)


class _Room:
    """Room for bodies that give way to each other."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.bodies: set[Body] = set()

    def make_room(self, now: float) -> None:
        while self.held_bytes > self.limit_bytes and len(self.bodies) > 1:
            held = Counter[object]()
            for body in self.bodies:
                held[body.caller] += body.held_bytes
            holding = (body for body in self.bodies if body.held_bytes)
            max(holding, key=lambda it: (held[it.caller], not it.is_whole, -it.pace(now))).end()


class Body:
    """Body of one request. Belongs to the event loop."""

    def __init__(self, room: _Room, caller: object) -> None:
        self.caller = caller
        self.held_bytes = 0
        self.is_whole = False  # its caller sends nothing more
        self._room = room
        self._task: Any = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()

    def __enter__(self) -> Body:
        self._room.bodies.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        has_given_way = self not in self._room.bodies
        self._leave()
        if has_given_way and kind is asyncio.CancelledError:
            self._task.uncancel()
            raise _no_room() from None

    def hold(self, size_bytes: int) -> None:
        """Count the bytes that are held now.

        Raises:
            ResourceExhausted: the body gave way to others.
        """
        self._room.held_bytes += size_bytes - self.held_bytes
        self.held_bytes = size_bytes
        if self._room.held_bytes > self._room.limit_bytes:
            self._room.make_room(self._loop.time())
        if self not in self._room.bodies:
            self._leave()
            raise _no_room()

    def pace(self, now: float) -> float:
        """Bytes a second so far, of a new body some that have not come yet."""
        return (self.held_bytes + CREDIT_BYTES) / (now - self._began_at + 1)

    def end(self) -> None:
        """Give way to other bodies."""
        self._leave()
        if self._task is not asyncio.current_task():
            self._task.cancel()

    def _leave(self) -> None:
        self._room.bodies.discard(self)
        self._room.held_bytes -= self.held_bytes
        self.held_bytes = 0


def _no_room() -> ResourceExhausted:
    return ResourceExhausted(
        "this body came slowly while bodies took all memory for them; send it again, or let the "
        "server hold more (BRAID_CALLS_MEMORY_BYTES)",
        0.1,
    )


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
