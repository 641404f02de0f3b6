"""Connections of all ports: how many there may be, and which gives way to a new one.

    listening socket ──Acceptor──> Place of a stranger ──call with a token──> known: keeps its place
                                     └── beyond the limits: the longest idle one gives way

Ports accept by themselves: servers of asyncio do not tell of connections before TLS has greeted,
and those of uvloop end where the process has no descriptor left.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

log = logging.getLogger("braid.rpc")

KEPT_PLACES: Final = 16
"""Places that known callers leave to new connections, on which others show their tokens."""
CONNECTION_BYTES: Final = 64 << 10
"""Memory that a connection takes, whatever is sent on it."""
FEW: Final = 1024
ACCEPTED_AT_ONCE: Final = 64
PAUSE_S: Final = 0.5
"""Time without new connections after one that the system refused."""


def most_connections(memory_bytes: int) -> int:
    """Return how many connections fit into memory, and into three quarters of the descriptors."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(FEW, memory_bytes // CONNECTION_BYTES)
    return most if descriptors == resource.RLIM_INFINITY else min(most, descriptors * 3 // 4)


class Place:
    """Place of one connection, from its acceptance to its end."""

    __slots__ = ("drop", "is_at_work", "is_known", "network")

    def __init__(self, network: str) -> None:
        self.network = network  # part of the caller's address that it cannot choose
        self.is_known = False  # the caller has shown a token
        self.drop: Callable[[], object] = lambda: None  # closes the connection
        self.is_at_work: Callable[[], bool] = lambda: False  # the caller waits for an answer


class Connections:
    """Places of all connections. Belongs to the event loop.

    Strangers have three quarters of all places in one network at most. Where none is left, a
    stranger gives way: of the network that has most, the longest idle, else the longest at work.
    """

    def __init__(
        self,
        most: int,
        unread_bytes: int = 16 << 20,
        network_of: Callable[[str], str] = str,
        is_token: Callable[[str], bool] = lambda authorization: False,
    ) -> None:
        """Have none.

        Args:
            most: of all.
            unread_bytes: most that all hold of requests to be read, and of answers to be taken.
            network_of: returns the part of an address that callers cannot choose.
            is_token: tells whether a header ``authorization`` shows a token that counts.
        """
        self.network_of = network_of
        self.answering: set[object] = set()  # those of HTTP/1.1 whose route is at work
        self._most = most
        self._unread_bytes = unread_bytes
        self._is_token = is_token
        self._known = self._count = self._held_bytes = 0
        self._strangers: dict[str, dict[Place, None]] = {}  # by network, the longest idle first
        self._held: dict[Place, int] = {}

    def enter(self, address: str) -> Place:
        """Return the place of a new connection; a stranger's connection may be closed for it."""
        place = Place(self.network_of(address.removeprefix("::ffff:")) or "unix")
        if len(self._strangers.get(place.network, ())) >= self._most - self._most // 4:
            self._give_way(self._strangers[place.network])
        elif self._count >= self._most:
            self._give_way(max(self._strangers.values(), key=len))
        self._strangers.setdefault(place.network, {})[place] = None
        self._count += 1
        return place

    def leave(self, place: Place) -> None:
        """Free the place of a connection that has ended. May be called twice."""
        self.hold(place, 0)
        if place.is_known:
            place.is_known = False
            self._known -= 1
            self._count -= 1
        elif place in self._strangers.get(place.network, ()):
            self._forget(place)
            self._count -= 1

    def used(self, place: Place, authorization: str) -> None:
        """Note a stranger's call, and whether it is known from now on."""
        if place.is_known or place not in self._strangers.get(place.network, ()):
            return
        self._forget(place)
        has_room = self._known < self._most - KEPT_PLACES
        if authorization and has_room and self._is_token(authorization):
            place.is_known = True
            self._known += 1
        else:
            self._strangers.setdefault(place.network, {})[place] = None

    def hold(self, place: Place, size_bytes: int) -> None:
        """Note what a connection holds; beyond the limit, the one that holds most is closed."""
        self._held_bytes += size_bytes - self._held.pop(place, 0)
        if size_bytes:
            self._held[place] = size_bytes
        while self._held_bytes > self._unread_bytes:
            self._drop(max(self._held, key=self._held.__getitem__))

    def _give_way(self, strangers: dict[Place, None]) -> None:
        idle = (place for place in strangers if not place.is_at_work())
        self._drop(next(idle, next(iter(strangers))))

    def _drop(self, place: Place) -> None:
        self.leave(place)
        place.drop()

    def _forget(self, place: Place) -> None:
        strangers = self._strangers[place.network]
        del strangers[place]
        if not strangers:
            del self._strangers[place.network]


class Acceptor:
    """Takes the connections of one listening socket. Belongs to the event loop."""

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        make: Callable[[Place], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        """Listen already; ``make`` makes the protocol of a connection, which frees its place."""
        listening.setblocking(False)
        self._listening = listening
        self._connections = connections
        self._make = make
        self._tls = tls
        self._handshake_s = None if tls is None else handshake_s
        self._greeting: set[asyncio.Task[object]] = set()
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Take no more connections. May be called twice."""
        if self._listening.fileno() < 0:
            return
        self._loop.remove_reader(self._listening)
        self._listening.close()
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._greeting:
            task.cancel()

    def _listen(self) -> None:
        self._alarm = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                taken, address = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory
                log.warning("a connection is not accepted", extra={"reason": error.strerror})
                self._loop.remove_reader(self._listening)
                self._alarm = self._loop.call_later(PAUSE_S, self._listen)
                return
            place = self._connections.enter(address[0] if isinstance(address, tuple) else "")
            task = self._loop.create_task(self._take(taken, place))
            place.drop = task.cancel  # until the protocol has its transport
            task.add_done_callback(partial(self._taken, taken, place))
            self._greeting.add(task)

    async def _take(self, taken: socket.socket, place: Place) -> None:
        taken.setblocking(False)
        await self._loop.connect_accepted_socket(
            partial(self._make, place),
            taken,
            ssl=self._tls,
            ssl_handshake_timeout=self._handshake_s,
        )

    def _taken(self, taken: socket.socket, place: Place, task: asyncio.Task[object]) -> None:
        self._greeting.discard(task)
        if task.cancelled() or task.exception():  # it has left, or knows no TLS
            taken.close()
            self._connections.leave(place)
