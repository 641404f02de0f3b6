"""Requests: their bodies, read up to a limit, and whether another site's page sent them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
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
"""Bytes of a short body."""
CREDIT_BYTES = 4 << 20


async def read_body(
    request: Request, limit_bytes: int, hold: Callable[[int], None] = lambda size_bytes: None
) -> bytes:
    """Return the body of a request; ``hold`` is told the size of what has come.

    Raises HTTPException: it is larger than ``limit_bytes``, whether or not its headers say so.
    """
    refuse_longer(request, limit_bytes)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        refuse_longer(request, limit_bytes, size)
        hold(size)
        parts.append(part)
    return await in_steps(joined(parts))


async def read_form(request: Request) -> bytes:
    """Return the body of a form; HTTPException: its length is not given, or above FORM_BYTES."""
    if "transfer-encoding" in request.headers:
        raise HTTPException(HTTPStatus.LENGTH_REQUIRED)
    return await read_body(request, FORM_BYTES)


def refuse_longer(request: Request, limit_bytes: int, size_bytes: int = 0) -> None:
    """Raise HTTPException if a body has more bytes, as it came or as its headers say."""
    told = request.headers.get("content-length", "0")  # digits: the parser has seen to that
    if max(size_bytes, int(told[:20])) > limit_bytes:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body here has at most {limit_bytes} bytes"
        )


@dataclass(slots=True, eq=False)
class Body:
    """Body of one request, which a task answers."""

    _room: BodyRoom
    caller: object
    _began_at: float
    held_bytes: int = 0
    is_whole: bool = False  # its caller sends nothing more
    task: Any = field(default_factory=asyncio.current_task)

    def hold(self, size_bytes: int) -> None:
        """Count the bytes that are held now; other bodies, or this one, may give way."""
        self._room.change(self, size_bytes)

    def pace(self, now: float) -> float:
        """Bytes a second so far; a new body is as fast as if CREDIT_BYTES had come at once."""
        return (self.held_bytes + CREDIT_BYTES) / (now - self._began_at + 1)


class BodyRoom:
    """Room for the bodies of all connections, from their first byte until they are answered.

    Beyond the limit, the slowest body of the caller that holds most gives way. Long bodies leave a
    quarter of the room to short ones.
    """

    def __init__(self, limit_bytes: int, now: Callable[[], float] = monotonic) -> None:
        self.now = now
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._bodies: set[Body] = set()

    @contextmanager
    def reading(self, request: Request) -> Iterator[Body]:
        """Have room for the body of a request. Raises ResourceExhausted: it gave way to others."""
        caller = owner_in(request.headers) or request.state.connection.place.network
        body = Body(self, caller, self.now())
        self._bodies.add(body)
        try:
            yield body
        except asyncio.CancelledError:
            if body in self._bodies:
                raise
            body.task.uncancel()
            raise ResourceExhausted(
                "this body came slowly while bodies took all memory for them; send it again, or "
                "let the server hold more (BRAID_CALLS_MEMORY_BYTES)",
                0.1,
            ) from None
        finally:
            self._leave(body)

    def change(self, body: Body, size_bytes: int) -> None:
        """Count what a body holds; ends the tasks of bodies that give way."""
        self._held_bytes += size_bytes - body.held_bytes
        body.held_bytes = size_bytes
        limit_bytes = self._limit_bytes
        if size_bytes > SHORT_BYTES:
            limit_bytes -= limit_bytes // 4
        while self._held_bytes > max(limit_bytes, body.held_bytes):
            slowest = self._slowest()
            self._leave(slowest)
            if slowest is body:
                raise asyncio.CancelledError
            slowest.task.cancel()

    def _slowest(self) -> Body:
        held, now = Counter[object](), self.now()
        for body in self._bodies:
            held[body.caller] += body.held_bytes
        holding = (body for body in self._bodies if body.held_bytes)
        return max(holding, key=lambda it: (held[it.caller], not it.is_whole, -it.pace(now)))

    def _leave(self, body: Body) -> None:
        self._bodies.discard(body)
        self._held_bytes -= body.held_bytes
        body.held_bytes = 0


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
