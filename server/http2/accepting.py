"""Connections of all ports: how many there may be, and which gives way to a new one.

Servers of asyncio do not tell of connections before TLS has greeted, and uvloop's end where the
process has no descriptor left: here, all that are accepted count.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

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


@dataclass(slots=True, eq=False)
class Place:
    """Place of one connection, from its acceptance to its end."""

    network: str  # part of the caller's address that it cannot choose
    is_known: bool = False  # the caller has shown a token
    drop: Callable[[], object] = field(init=False)  # closes the connection
    is_at_work: Callable[[], bool] = lambda: False  # the caller waits for an answer


@dataclass(slots=True)
class Connections:
    """Places of all connections. Belongs to the event loop.

    Strangers have three quarters of all places in one network at most. Where none is left, a
    stranger gives way: of the network that has most, the longest idle, else the longest at work.
    """

    _most: int  # places
    most_bytes: int = 16 << 20  # as ``hold`` notes them
    network_of: Callable[[str], str] = str
    is_token: Callable[[str], bool] = lambda authorization: False
    """Tells whether a header ``authorization`` shows a token that counts."""
    answering: set[object] = field(default_factory=set)
    """Those of HTTP/1.1 whose route is at work."""
    _known: set[Place] = field(default_factory=set)
    # By network, the longest idle first.
    _strangers: dict[str, dict[Place, None]] = field(default_factory=dict)
    _count: int = 0
    _held_bytes: int = 0
    _held: dict[Place, int] = field(default_factory=dict)

    def enter(self, address: str) -> Place:
        """Return the place of a new connection; a stranger's connection may be closed for it."""
        place = Place(self.network_of(address.removeprefix("::ffff:")))
        same = self._strangers.get(place.network, {})
        if len(same) >= self._most - self._most // 4:
            self._give_way(same)
        elif self._count >= self._most:
            self._give_way(max(self._strangers.values(), key=len))
        self._strangers.setdefault(place.network, {})[place] = None
        self._count += 1
        return place

    def leave(self, place: Place) -> None:
        """Free the place of a connection that has ended. May be called twice."""
        self.hold(place, 0)
        if place in self._known or place in self._strangers.get(place.network, ()):
            self._known.discard(place)
            self._forget(place)
            self._count -= 1

    def used(self, place: Place, authorization: str) -> None:
        """Note a stranger's call, and whether it is known from now on."""
        if place not in self._strangers.get(place.network, ()):
            return
        self._forget(place)
        has_room = len(self._known) < self._most - KEPT_PLACES
        if authorization and has_room and self.is_token(authorization):
            place.is_known = True
            self._known.add(place)
        else:
            self._strangers.setdefault(place.network, {})[place] = None

    def hold(self, place: Place, size_bytes: int) -> None:
        """Note what a connection holds; beyond the limit of all, those with most are closed."""
        self._held_bytes += size_bytes - self._held.pop(place, 0)
        if size_bytes:
            self._held[place] = size_bytes
        while self._held_bytes > self.most_bytes and len(self._held) > 1:
            self._drop(max(self._held, key=self._held.__getitem__))

    def _give_way(self, strangers: dict[Place, None]) -> None:
        idle = (place for place in strangers if not place.is_at_work())
        self._drop(next(idle, next(iter(strangers))))

    def _drop(self, place: Place) -> None:
        self.leave(place)
        place.drop()

    def _forget(self, place: Place) -> None:
        strangers = self._strangers.get(place.network, {})
        strangers.pop(place, None)
        if not strangers:
            self._strangers.pop(place.network, None)


def accept(
    listening: socket.socket,
    connections: Connections,
    make: Callable[[Place], asyncio.BaseProtocol],
    tls: ssl.SSLContext | None,
    handshake_s: float,
) -> None:
    """Take the connections of a socket until ``stop_accepting``.

    ``make`` makes protocols. One sets ``drop`` when it has its transport, and leaves its place.
    """
    loop = asyncio.get_running_loop()
    how: Any = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": handshake_s}

    def listen() -> None:
        if listening.fileno() >= 0:
            loop.add_reader(listening, take)

    def take() -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                taken, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory
                log.warning("a connection is not accepted", extra={"reason": error.strerror})
                loop.remove_reader(listening)
                loop.call_later(PAUSE_S, listen)
                return
            taken.setblocking(False)
            place = connections.enter(address[0] if isinstance(address, tuple) else "unix")
            greeting = loop.connect_accepted_socket(partial(make, place), taken, **how)
            task = loop.create_task(greeting)
            place.drop = task.cancel
            task.add_done_callback(partial(_greeted, connections, place, taken))

    listening.setblocking(False)
    listen()


def stop_accepting(listening: socket.socket) -> None:
    """Close a socket. May be called twice."""
    if listening.fileno() >= 0:
        asyncio.get_running_loop().remove_reader(listening)
        listening.close()


def _greeted(
    connections: Connections, place: Place, taken: socket.socket, task: asyncio.Task[Any]
) -> None:
    if task.cancelled() or task.exception():  # the caller has left, or speaks no TLS
        taken.close()
        connections.leave(place)
