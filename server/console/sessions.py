"""Sessions of browsers that signed in to the console with an admin token, and limited attempts.

A session is a random name in a cookie that scripts cannot read and other sites do not send. It
ends after ``SESSION_SECONDS``, and as soon as its token is withdrawn.
"""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from braid.server.security.addresses import network_of
from braid.server.security.tokens import Digest, digest_of, owner_in

COOKIE = "braid-console"
SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 256

MAX_FAILURES = 5
WINDOW_SECONDS = 60.0
MAX_PEERS = 1024


@dataclass(frozen=True, slots=True)
class _Session:
    """Session of one browser."""

    token: Digest
    ends: float  # on the monotonic clock


@dataclass(slots=True)
class Sessions:
    """All sessions, in memory only."""

    _is_admin: Callable[[Digest], bool]
    _clock: Callable[[], float] = monotonic
    # In the order they began, and will end.
    _sessions: dict[str, _Session] = field(default_factory=dict)

    def sign_in(self, token: str) -> str | None:
        """Begin a session; returns its name, or None if the token is wrong."""
        digest = digest_of(token)
        if not self._is_admin(digest):
            return None
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[_key(name)] = _Session(digest, self._clock() + SESSION_SECONDS)
        return name

    def sign_out(self, headers: Mapping[str, str]) -> None:
        self._sessions.pop(_key(_cookie(headers)), None)

    def is_signed_in(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request carries a session that has not ended."""
        key = _key(_cookie(headers))
        session = self._sessions.get(key)
        if session is None:
            return False
        if session.ends > self._clock() and self._is_admin(session.token):
            return True
        del self._sessions[key]  # for good, even if the token comes back
        return False

    def may_look(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request carries a session, or an admin's token as programs send it."""
        return self.is_signed_in(headers) or self._is_admin(owner_in(headers))


@dataclass(slots=True)
class SignInLimit:
    """Wrong tokens by the address that they came from, of ``MAX_PEERS`` addresses at most.

    Tokens are too long to be guessed; the limit keeps guessing out of the logs and off the event
    loop. The right token has to wait, too: otherwise the limit would tell which one it is.
    """

    _clock: Callable[[], float] = monotonic
    # When; the address that failed last is last.
    _failures: dict[str, list[float]] = field(default_factory=dict)

    def wait_seconds(self, peer: str) -> float:
        """Return the seconds until this address may try again; 0: now."""
        recent = self._recent(network_of(peer))
        return recent[0] + WINDOW_SECONDS - self._clock() if len(recent) >= MAX_FAILURES else 0.0

    def failed(self, peer: str) -> bool:
        """Count a wrong token; returns True if this address has to wait from now on."""
        network = network_of(peer)
        recent = [*self._recent(network), self._clock()]
        self._failures.pop(network, None)
        self._failures[network] = recent
        if len(self._failures) > MAX_PEERS:
            del self._failures[next(iter(self._failures))]
        return len(recent) >= MAX_FAILURES

    def _recent(self, network: str) -> list[float]:
        since = self._clock() - WINDOW_SECONDS
        return [when for when in self._failures.get(network, ()) if when > since]


def set_cookie(name: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that gives a session to a browser; an empty name ends the session.

    ``secure``: the port speaks TLS, and the browser is to send the session over nothing else.
    """
    age = round(SESSION_SECONDS) if name else 0
    rules = f"Path=/console/; HttpOnly; SameSite=Strict; Max-Age={age}"
    return "Set-Cookie", f"{COOKIE}={name}; {rules}{'; Secure' if secure else ''}"


def _key(name: str) -> str:
    """Return the digest that a name is kept by, so that look-ups tell nothing by their time."""
    return hashlib.sha256(name.encode()).hexdigest()


def _cookie(headers: Mapping[str, str]) -> str:
    """Return the value of our cookie; http.cookies takes seconds for one that is hostile."""
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value.strip('"')
    return ""
