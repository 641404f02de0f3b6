"""Turns of the event loop in which connections read: none so long that answers of devices wait.

    buffer_updated ──has_time?──yes──> frames are read
                          └──no──> wait: nothing more is received until the next turn

A flood fills the buffers of all its connections, which one turn would read to their end: for
half a second, in which a device that has finished is given no more to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

TURN_SECONDS: Final = 0.01
"""Shorter turns let devices wait less in a flood, and cost more: answers are sent turn by turn."""


class Reader(Protocol):
    """Connection that has received something."""

    def read_on(self) -> None:
        """Read what was received."""


class Turns:
    """Reading of all connections of one server. Belongs to the event loop."""

    def __init__(self) -> None:
        self._until: float | None = None  # of the present turn, by the monotonic clock
        self._waiting: deque[Reader] = deque()

    def has_time(self, now: float) -> bool:
        """Whether a connection may read in this turn; the first one that asks may."""
        if self._until is not None:
            return now < self._until
        self._until = now + TURN_SECONDS
        asyncio.get_running_loop().call_soon(self._next)
        return True

    def wait(self, reader: Reader) -> None:
        """Let a connection read in a later turn, after those that wait already."""
        self._waiting.append(reader)

    def _next(self) -> None:
        self._until = None
        for _ in range(len(self._waiting)):
            self._waiting.popleft().read_on()
