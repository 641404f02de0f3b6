"""HTTP port: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for probes, the console.

uvicorn's protocol and Starlette's routes, in the event loop of the server: no process, no thread
and no signal handler of their own.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence

from starlette.routing import BaseRoute, Router
from uvicorn import Config
from uvicorn.server import ServerState

from braid.server.http2.accepting import Connections, Place, accept, stop_accepting
from braid.server.http2.server import sockets_of
from braid.server.ports.http.application import Application, IsOurName, telling_origins
from braid.server.ports.http.connection import CallerConnection, HttpLimits

HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
"""Headers of every answer."""


class HttpServer:
    """Serves ``routes`` from ``start`` until ``stop``."""

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        is_our_name: IsOurName = lambda host, in_protocol: True,
        limits: HttpLimits | None = None,
        origins: Sequence[str] = (),
        started: asyncio.Event | None = None,
        connections: Connections | None = None,
    ) -> None:
        """``origins``: whose pages may call. Until ``started``, anything but probes waits."""
        self._limits = limits or HttpLimits()
        self._connections = connections or Connections(self._limits.max_connections)
        self._state = ServerState()
        self._state.default_headers = HEADERS
        router = Router(routes, redirect_slashes=False)
        application = Application(router, is_our_name, self._connections, self._limits, started)
        self._config = Config(
            telling_origins(application, origins),
            http=CallerConnection,
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        self._sockets: list[socket.socket] = []

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port, which matters when 0 was asked for; or raises OSError."""
        seconds = self._limits.request_seconds
        self._sockets = sockets_of(host, port)
        for each in self._sockets:
            accept(each, self._connections, self._connected, tls, seconds)
        bound: int = self._sockets[0].getsockname()[1]
        return bound

    def _connected(self, place: Place) -> CallerConnection:
        return CallerConnection(self._config, self._state, place, self._connections, self._limits)

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Take no more connections, let answers under way finish for a moment, then close."""
        for each in self._sockets:
            stop_accepting(each)
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=grace_seconds)
        for connection in list(self._state.connections):
            assert isinstance(connection, CallerConnection)
            connection.drop()
        for task in self._state.tasks:
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
