"""One request of the HTTP port, from its head to a route, and what every answer says.

``Host`` must name this server, but for probes and scrapers: those call it by names that only
their network knows, and are shown nothing that scripts could change.

Requests at work are bounded, but for those of the probes, which always get through. A page that
only shows is bounded in time. An error tells nothing of the server's inside. Pages of
other origins may call the protocol where an operator lets them (CORS).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from braid.server.http2.accepting import Connections
from braid.server.ports.http.connection import CallerConnection, HttpLimits
from braid.server.ports.http.requests import FORM_BYTES, refuse_longer
from braid.server.security.addresses import EVERY
from braid.server.security.tokens import METRICS

log = logging.getLogger("braid.http")

PROBES = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
BY_ANY_NAME = (*PROBES, METRICS)
PROTOCOLS = ("/v2", "/v1")
"""Paths of the Open Inference Protocol: programs call it, over connections that are kept."""

READING = ("GET", "HEAD")

IsOurName = Callable[[str, bool], bool]
"""Tells whether a ``Host`` is answered; the flag: on a path of the protocol."""


@dataclass(frozen=True, slots=True)
class Application:
    """ASGI application over routes. Belongs to the event loop."""

    _router: Router
    _is_our_name: IsOurName
    _connections: Connections
    _limits: HttpLimits
    _started: asyncio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises nothing but the server's own cancellation."""
        connection: CallerConnection = scope["state"]["connection"]
        is_protocol = in_protocol(scope["path"])
        sending = send if is_protocol else _closing(send)
        try:
            response = await self._answer(scope, receive, sending, connection)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            if not connection.is_lost:
                raise
            return
        if response is None:
            return
        if connection.cycle.response_started:
            connection.drop()
        else:
            await response(scope, receive, sending)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, connection: CallerConnection
    ) -> Response | None:
        """Run the request's route; returns what is said in its place, if anything."""
        request = Request(scope)
        path = scope["path"]
        scope["app"] = self  # else the router answers by itself what it does not find
        is_page = request.method in READING
        try:
            self._admit(request, connection)
            if is_page and (task := asyncio.current_task()) is not None:
                connection.on_lost = task.cancel
            async with asyncio.timeout(self._limits.page_seconds if is_page else None):
                if self._started is not None and path not in PROBES:
                    await self._started.wait()
                await self._router(scope, receive, send)
        except HTTPException as error:
            return _said(path, error.detail, error.status_code, error.headers)
        except TimeoutError:
            log.warning("a page took too long", extra={"path": path})
            message = "this page took too long; try again"
            return _said(path, message, HTTPStatus.SERVICE_UNAVAILABLE)
        except (ClientDisconnect, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("a page failed", extra={"path": path})
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return _said(path, status.phrase, status)
        return None

    def _admit(self, request: Request, connection: CallerConnection) -> None:
        """Raise HTTPException for a wrong host, a body that nobody reads, or too many requests."""
        if request.method in READING:
            refuse_longer(request, FORM_BYTES)
        host, path = request.headers.get("host"), request.scope["path"]
        is_ours = self._is_our_name
        if host and path not in BY_ANY_NAME and not is_ours(host, in_protocol(path)):
            raise HTTPException(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this server is not called {host[:100]!r}: use its address, or start it with "
                "BRAID_HTTP_HOSTS naming all names that it is reached by",
            )
        answering = self._connections.answering
        others = len(answering) - (connection in answering)
        if others >= self._limits.max_connections // 2 and path not in PROBES:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once; try again"
            )


def text(
    message: str, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> PlainTextResponse:
    return PlainTextResponse(f"{message}\n", status, headers)


def in_protocol(path: str) -> bool:
    return f"{path}/".startswith(tuple(f"{root}/" for root in PROTOCOLS))


def _said(
    path: str, message: str, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error, in JSON where the protocol says so."""
    if in_protocol(path):
        return JSONResponse({"error": message}, status, headers)
    return text(message, status, headers)


def _closing(send: Send) -> Send:
    """Return ``send`` for pages, whose connections close after the answer."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append((b"connection", b"close"))
        await send(message)

    return closing


_TOLD = ("Inference-Header-Content-Length", "Braid-Request-Id", "Retry-After")
"""Headers of answers that pages may read."""


def is_from_allowed(request: Request, origins: Collection[str]) -> bool:
    """True if a page of ``origins`` sent a request; with cookies only if its origin is named.

    Browsers ask before they let a page read answers, but send simple requests without asking. Where
    every origin is allowed, what a cookie (of a proxy in front) lets its user do stays the user's.
    """
    if request.headers.get("origin") in origins:
        return True
    return EVERY in origins and "cookie" not in request.headers


def telling_origins(application: ASGIApp, origins: Collection[str]) -> ASGIApp:
    """Return an application that tells browsers on paths of the protocol which pages may call."""
    if not origins:
        return application
    telling = CORSMiddleware(
        application,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=_TOLD,
    )

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        await (telling if in_protocol(scope["path"]) else application)(scope, receive, send)

    return routed
