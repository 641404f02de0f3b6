"""Pages of other origins that an operator lets call the protocol (CORS)."""

from __future__ import annotations

from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from braid.server.ports.http.application import in_protocol
from braid.server.security.addresses import EVERY

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
