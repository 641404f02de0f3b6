"""Server of gRPC on the event loop, with the surface of ``grpc.aio.Server``.

A wildcard host, 0.0.0.0 as well as ::, listens on IPv4 and IPv6, as gRPC's own servers do.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from braid.server.http2.accepting import FEW, Connections, Place, accept, stop_accepting
from braid.server.http2.arrivals import Arrivals
from braid.server.http2.calls import Call, HandlerOf
from braid.server.http2.connection import HttpConnection
from braid.server.http2.floods import ReadTurns
from braid.server.http2.streams import Cancel, ConnectionLimits, HttpStream

FLUSH_SECONDS: Final = 1.0
"""Time for the last bytes of answers to go out after their calls have ended."""
HANDSHAKE_SECONDS: Final = 20.0
BACKLOG: Final = 4096
"""Connections that wait to be accepted, as far as the system lets so many wait."""

_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of a machine without IPv6, or without this address."""


@dataclass(slots=True)
class _Listening:
    """Bound socket, and TLS of its connections."""

    socket: socket.socket
    tls: ssl.SSLContext | None
    path: str = ""  # of a Unix socket
    inode: int = 0


class Server(grpc.aio.Server):
    """Server whose calls are handled in the event loop alone."""

    def __init__(
        self,
        limits: ConnectionLimits,
        arrivals: Arrivals,
        interceptors: Sequence[Any] = (),
        places: Connections | None = None,
    ) -> None:
        """Serve nothing yet; all servers of a process share ``arrivals`` and ``places``."""
        self._limits = limits
        self._places = places or Connections(FEW)
        self._arrivals = arrivals
        self._turns = ReadTurns()
        self._generic: list[Any] = []
        self._registered: dict[str, Any] = {}
        self._bound: list[_Listening] = []
        self._connections: set[HttpConnection] = set()
        self._calls: set[Call] = set()
        handler_of: HandlerOf = self._find
        for interceptor in reversed(interceptors):
            handler_of = partial(interceptor.intercept_service, handler_of)
        self.handler_of = handler_of
        self._is_stopping = False
        self._emptied = asyncio.Event()  # no connection is left
        self._emptied.set()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        self._generic += generic_rpc_handlers

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        for name, handler in method_handlers.items():
            self._registered[f"/{service_name}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        """Bind ``host:port`` or ``unix:/path``; returns the port, 1 for a path; or RuntimeError."""
        return self._add(address, None)

    def add_secure_port(self, address: str, server_credentials: Any) -> int:
        """Bind an address whose callers speak TLS; the credentials are an ``ssl.SSLContext``."""
        return self._add(address, server_credentials)

    def _add(self, address: str, tls: ssl.SSLContext | None) -> int:
        try:
            if address.startswith("unix:"):
                self._bind_path(address.removeprefix("unix:"), tls)
                return 1
            host, _, port = address.rpartition(":")
            return self._bind_host(host.strip("[]"), int(port), tls)
        except OSError as error:
            raise RuntimeError(f"Failed to bind to address {address}: {error}") from error

    def _bind_path(self, path: str, tls: ssl.SSLContext | None) -> None:
        listening = _Listening(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), tls, path)
        try:
            listening.socket.bind(path)
        except OSError:
            listening.socket.close()
            raise
        listening.inode = os.stat(path).st_ino
        self._bound.append(listening)

    def _bind_host(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Bind every address of a host that this machine has; returns the port of all."""
        if host in _WILDCARDS:
            host = "::" if _has_ipv6() else "0.0.0.0"
        bound = sockets_of(host, port)
        self._bound += [_Listening(opened, tls) for opened in bound]
        return int(bound[0].getsockname()[1])

    async def start(self) -> None:
        for port in self._bound:
            port.socket.listen(BACKLOG)
            accept(port.socket, self._places, self._connected, port.tls, HANDSHAKE_SECONDS)

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; end those under way after ``grace`` seconds, None: at once."""
        self._is_stopping = True
        for port in self._bound:
            stop_accepting(port.socket)
            with contextlib.suppress(FileNotFoundError):
                if port.path and os.stat(port.path).st_ino == port.inode:
                    os.unlink(port.path)
        for connection in list(self._connections):
            connection.close()
        tasks = [call._task for call in self._calls]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for connection in list(self._connections):
            if not connection.is_idle:
                connection.abort()
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._flush()

    async def _flush(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._emptied.wait()
        for connection in list(self._connections):
            connection.abort()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Not offered: who serves knows when it calls ``stop``."""
        raise NotImplementedError

    def _begin(self, connection: HttpConnection, stream: HttpStream) -> Cancel:
        if not connection.place.is_known:
            shown = (v for k, v in stream.head.invocation_metadata if k == "authorization")
            self._places.used(connection.place, str(next(shown, "")))
        return Call(self.handler_of, self._calls, connection, stream).cancel

    def _connected(self, place: Place) -> HttpConnection:
        connection = HttpConnection(self._limits, self._arrivals, self._turns, self._begin)
        connection.place = place
        connection.on_closed = self._closed
        connection.on_made = self._made
        return connection

    def _made(self, connection: HttpConnection) -> None:
        self._connections.add(connection)
        self._emptied.clear()
        connection.place.drop = connection.abort
        connection.place.is_at_work = lambda: not connection.is_idle
        if self._is_stopping:
            connection.abort()

    def _closed(self, connection: HttpConnection) -> None:
        self._places.leave(connection.place)
        self._connections.discard(connection)
        if not self._connections:
            self._emptied.set()

    async def _find(self, details: Any) -> Any:
        handler = self._registered.get(details.method)
        if handler is not None:
            return handler
        for offered in self._generic:
            handler = offered.service(details)
            if handler is not None:
                return handler
        return None


def sockets_of(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to one port at all addresses of a host here, or raise OSError."""
    places = dict.fromkeys(
        (family, place)
        for family, _, _, _, place in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    )
    bound: list[socket.socket] = []
    absent: OSError | None = None
    with contextlib.ExitStack() as opened:
        for family, place in places:
            try:
                listening = _listening_at(family, (place[0], port, *place[2:]))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
                continue
            bound.append(opened.enter_context(listening))
            port = int(listening.getsockname()[1])
        if not bound:
            raise absent or OSError(errno.EADDRNOTAVAIL, "the host has no address")
        opened.pop_all()
    return bound


_WILDCARDS: Final = ("", "0.0.0.0", "::")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
            trial.bind(("::", 0))
    except OSError:
        return False
    return True


def _listening_at(family: int, place: Any) -> socket.socket:
    """Return a socket that listens at an address; one for all of IPv6 takes IPv4, too."""
    is_for_all = family == socket.AF_INET6 and place[0] == "::"
    bound = socket.create_server(place, family=family, backlog=BACKLOG, dualstack_ipv6=is_for_all)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones inherit it
    return bound
