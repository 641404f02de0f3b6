"""Who may change things through the console: whoever signed in with the admin token.

A session is a random name in a cookie that scripts cannot read and other sites do not send.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from time import monotonic

COOKIE = "braid-console"
SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 256


class Sessions:
    """Who is signed in. Gone when the server stops."""

    def __init__(self, is_admin: Callable[[str], bool]) -> None:
        self._is_admin = is_admin
        self._ends: dict[str, float] = {}

    def sign_in(self, token: str) -> str | None:
        """A new session's name, or None if the token is wrong."""
        if not self._is_admin(token):
            return None
        while len(self._ends) >= MAX_SESSIONS:
            del self._ends[min(self._ends, key=self._ends.__getitem__)]
        name = secrets.token_urlsafe(32)
        self._ends[_key(name)] = monotonic() + SESSION_SECONDS
        return name

    def sign_out(self, headers: Mapping[str, str]) -> None:
        """End the session of a request."""
        self._ends.pop(_key(_cookie(headers)), None)

    def is_signed_in(self, headers: Mapping[str, str]) -> bool:
        """Whether a request carries a session that has not ended."""
        return self._ends.get(_key(_cookie(headers)), 0.0) > monotonic()


def set_cookie(name: str, *, secure: bool) -> tuple[str, str]:
    """The header that gives a session to a browser; an empty name takes it away.

    ``secure``: the port speaks TLS, and the browser is to send the session over nothing else.
    """
    age = round(SESSION_SECONDS) if name else 0
    rules = f"Path=/console/; HttpOnly; SameSite=Strict; Max-Age={age}"
    return "Set-Cookie", f"{COOKIE}={name}; {rules}{'; Secure' if secure else ''}"


def _key(name: str) -> str:
    """Names are kept as digests: looking one up takes as long for a guess as for the right one."""
    return hashlib.sha256(name.encode()).hexdigest()


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""
