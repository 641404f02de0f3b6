"""Limit of one address's attempts to sign in to the console.

Tokens are too long to be guessed; this keeps guessing out of the logs and off the event loop, and
is remembered for ``MAX_PEERS`` addresses at most. The right token has to wait, too: otherwise the
limit would tell which one it is.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from braid.server.security.addresses import network_of

MAX_FAILURES = 5
WINDOW_SECONDS = 60.0
MAX_PEERS = 1024


class SignInLimit:
    """Wrong tokens by the address that they came from."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, list[float]] = {}  # when; the address that failed last is last

    def wait_seconds(self, peer: str) -> float:
        """Return the seconds until this address may try again; 0: now."""
        recent = self._recent(network_of(peer))
        return recent[0] + WINDOW_SECONDS - self._clock() if len(recent) >= MAX_FAILURES else 0.0

    def failed(self, peer: str) -> bool:
        """Count a wrong token; returns bool: this address has to wait from now on."""
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
