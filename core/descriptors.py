"""Descriptors with one owner each: who closes a number twice closes another thread's file.

    Descriptor    closed by ``close``, or with the last reference to it
    connect       gives a socket to a transport of the event loop, which alone closes it then

Whoever uses a number refers to its ``Descriptor`` meanwhile, also in another thread. Pipes are not
given to the event loop: uvloop closes the number and then the file object (``connect_read_pipe``).
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Self, TypeVar

from braid.core.background import to_the_end

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Descriptor:
    """Number of an open file, which this object closes exactly once."""

    __slots__ = ("_open",)

    def __init__(self, number: int) -> None:
        self._open = [number]

    def fileno(self) -> int:
        """Return the number, valid while this object is referenced. ValueError if it is closed."""
        try:
            return self._open[0]
        except IndexError:
            raise ValueError("the descriptor is closed") from None

    def close(self) -> None:
        try:
            number = self._open.pop()  # of several threads, one gets it
        except IndexError:
            return
        os.close(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


async def connect(
    make_protocol: Callable[[], P], connected: socket.socket
) -> tuple[asyncio.Transport, P]:
    """Make a transport of a connected socket, which is closed if the caller is cancelled.

    The loop is not cancelled halfway: versions of uvloop before 0.23 would leave the socket two
    owners.
    """
    connected.setblocking(False)
    connections: list[tuple[asyncio.Transport, P]] = []

    async def make() -> None:
        loop = asyncio.get_running_loop()
        connections.append(await loop.create_connection(make_protocol, sock=connected))

    try:
        await to_the_end(make())
    except asyncio.CancelledError:
        for transport, _ in connections:
            transport.close()
        raise
    return connections[0]
