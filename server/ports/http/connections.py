"""Connections of the HTTP port, and which of them gives way to a new one."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


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
        """Add a connection; another one is dropped if there are too many."""
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
        waiting = [each for each in self._open if each not in self.answering]
        held = Counter(each.network for each in waiting)
        if waiting:
            victim = max(waiting, key=lambda each: held[each.network])  # of several the first
            self.remove(victim)
            victim.drop()
