"""Account of a caller by address: what it may hold at once, and how much of the event loop's time.

A caller is an address (of IPv6 a network) and the token that its connection has shown first, a
*stranger* until a handler reads a message of a method that needs one. Strangers need little, and
have a small part of memory and time; the address keeps its account when a connection ends, so
nothing is gained by connecting again.
"""

import asyncio
from time import monotonic
from typing import Final

KNOWN_PART = 2
STRANGERS_PART = 8
STRANGER_PART = 16
"""Parts of the limit on memory for calls, headers and unread bytes: of callers with a token, of all
strangers, of one stranger."""
STRANGER_TIME: Final = 0.25
"""Seconds of the event loop that a stranger may use in a second."""
BURST_S: Final = 0.5


class Part:
    """Bytes that are held at once by some callers, and their limit."""

    __slots__ = ("kept_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.kept_bytes = 0
        self.limit_bytes = limit_bytes


class Caller(Part):
    """Account of all connections of one address with one token, or of its strangers."""

    __slots__ = (
        "_left_s",
        "_told_at",
        "charged_bytes",
        "inflating",
        "is_known",
        "part",
        "reserved_bytes",
    )

    def __init__(self, limit_bytes: int, part: Part, *, is_known: bool) -> None:
        super().__init__(limit_bytes)
        self.part = part
        self.is_known = is_known
        self.charged_bytes = 0  # of requests and answers
        self.reserved_bytes = 0  # of long messages
        self.inflating = asyncio.Lock()  # held while a message of this caller is decompressed
        self._left_s, self._told_at = BURST_S, monotonic()

    def spend(self, seconds: float) -> float:
        """Count time of the event loop; returns for how long a stranger has to wait for more."""
        now = monotonic()
        earned_s = (now - self._told_at) * STRANGER_TIME
        self._left_s = max(min(self._left_s + earned_s, BURST_S) - seconds, -BURST_S)
        self._told_at = now
        return max(0.0, -self._left_s / STRANGER_TIME)
