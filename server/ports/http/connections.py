"""Limits of the HTTP port, and which of its connections gives way to a new one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Seconds that callers may take, bytes they may send, and how many connections there may be."""

    request_seconds: float = 5.0  # until a request is there, at least
    response_seconds: float = 10.0  # until its answer is taken, at least
    bytes_per_second: int = 64 << 10  # slower callers get no more time than that
    idle_seconds: float = 75.0  # between two requests of a connection
    page_seconds: float = 60.0  # of a page that only shows; forms take as long as what they change
    head_bytes: int = 16 << 10  # request line and headers
    unwanted_bytes: int = 64 << 20  # of a body that was refused, read so that the caller sees why
    max_connections: int = 1024

    @property
    def max_answering(self) -> int:
        return self.max_connections // 2


class Droppable(Protocol):
    """Connection of one caller."""

    network: str  # part of the caller's address that it cannot choose

    def drop(self) -> None:
        """Close the connection without an answer."""


class Connections:
    """Connections in the order they came. Belongs to the event loop.

    Beyond ``most`` a new one takes the place of one whose request is not at work: the oldest of the
    network that has most of those.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Droppable, None] = {}
        self.answering: set[Droppable] = set()  # a route is at work: the caller waits

    def add(self, connection: Droppable) -> None:
        if len(self._open) >= self._most:
            self._make_room()
        self._open[connection] = None

    def remove(self, connection: Droppable) -> None:
        """Forget a connection. May be called twice."""
        self._open.pop(connection, None)
        self.answering.discard(connection)

    def drop_all(self) -> None:
        for connection in list(self._open):
            connection.drop()

    def _make_room(self) -> None:
        waiting = [connection for connection in self._open if connection not in self.answering]
        held = Counter(connection.network for connection in waiting)
        if waiting:
            victim = max(waiting, key=lambda caller: held[caller.network])  # of several the first
            self.remove(victim)
            victim.drop()
