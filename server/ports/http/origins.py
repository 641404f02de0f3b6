"""Where a request comes from: a page of this server, a program, or another site's page."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request


def is_from_here(request: Request) -> bool:
    """Bool: no page of another site sent a request, as far as its browser tells."""
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
