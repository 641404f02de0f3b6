"""HTTP port: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for probes, the console.

A handful of routes on asyncio streams, without a framework: GET and HEAD, and POST of small forms
below a *folder*; one request a connection.

A request must arrive whole within ``request_seconds``, and its answer be taken within
``response_seconds``. Beyond ``max_connections`` a new connection takes the place of one that is
still sending or taking: the oldest of the address that has most of them. At most half of the
connections wait for answers other than those of the probes, so probes always get through.

``Host`` must name this server, but for probes and scrapers: those call it by names that only
their network knows, and are shown nothing that scripts could change.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from braid.server.ports.http_messages import (
    MAX_HEAD_BYTES,
    BadRequest,
    Request,
    Response,
    Route,
    read_request,
    text,
    write_head,
)
from braid.server.security.addresses import network_of

log = logging.getLogger("braid.http")

PROBES = ("/healthz", "/readyz")
BY_ANY_NAME = (*PROBES, "/metrics")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Seconds that callers may take, and how many connections there may be."""

    request_seconds: float = 5.0  # until a request is there
    response_seconds: float = 10.0  # until its answer is taken
    page_seconds: float = 60.0  # of a page that only shows; forms take as long as what they change
    max_connections: int = 128


@dataclass(eq=False, slots=True)
class _Connection:
    """One caller's connection."""

    peer: str
    network: str  # whose it is
    writer: asyncio.StreamWriter
    task: asyncio.Task[None] | None = None
    is_answering: bool = False  # a route is at work: the caller waits, not the server

    def drop(self) -> None:
        """Close the connection without an answer."""
        self.writer.transport.abort()
        if self.task is not None:
            self.task.cancel()


class HttpServer:
    """Serves ``routes`` (path -> route) from ``start`` until ``stop``.

    A path that ends with ``/``, but for the root, is a folder: its route answers everything below
    that has no route of its own, POST included.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        is_our_name: Callable[[str], bool] = lambda host: True,
        limits: HttpLimits | None = None,
    ) -> None:
        """Make the server, not started; ``is_our_name`` returns whether a ``Host`` is answered."""
        self._limits = limits or HttpLimits()
        self._routes = dict(routes)
        self._is_our_name = is_our_name
        self._folders = {
            path: route for path, route in routes.items() if path.endswith("/") and path != "/"
        }
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, None] = {}  # in the order they came

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port, which matters when 0 was asked for.

        Raises:
            OSError: the address is in use or not ours.
        """
        self._server = await asyncio.start_server(
            *(self._accept, host, port),
            limit=MAX_HEAD_BYTES,
            backlog=128,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self._limits.request_seconds,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Take no more connections, let answers under way finish for a moment, then close."""
        if self._server is None:
            return
        self._server.close()
        tasks = [each.task for each in self._connections if each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_seconds)
        for connection in list(self._connections):
            connection.drop()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._limits.max_connections:
            self._make_room()
        peername = writer.get_extra_info("peername")
        peer = peername[0] if peername else ""
        connection = _Connection(peer, network_of(peer), writer)
        connection.task = asyncio.get_running_loop().create_task(self._serve(reader, connection))
        self._connections[connection] = None
        connection.task.add_done_callback(lambda _: self._connections.pop(connection, None))

    def _make_room(self) -> None:
        """Drop the oldest idle connection of the network that has most idle ones."""
        idle = [each for each in self._connections if not each.is_answering]
        held = Counter(each.network for each in idle)
        if idle:
            victim = max(idle, key=lambda each: held[each.network])  # of several the first
            del self._connections[victim]
            victim.drop()

    async def _serve(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        writer = connection.writer
        try:
            try:
                reading = read_request(reader, connection.peer)
                request = await asyncio.wait_for(reading, self._limits.request_seconds)
                response = await self._answer(request, connection)
            except BadRequest as error:
                request = None
                response = text(str(error), error.status)
            body = b"" if request and request.method == "HEAD" else response.body
            writer.write(write_head(response) + body)
            await asyncio.wait_for(writer.drain(), self._limits.response_seconds)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), self._limits.response_seconds)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # too slow, or gone
        finally:
            writer.transport.abort()

    async def _answer(self, request: Request, connection: _Connection) -> Response:
        host = request.headers.get("host")
        if host and request.path not in BY_ANY_NAME and not self._is_our_name(host):
            message = (
                f"this server is not called {host[:100]!r}: use its address, or start it with "
                "BRAID_HTTP_HOSTS naming all names that it is reached by"
            )
            raise BadRequest(HTTPStatus.MISDIRECTED_REQUEST, message)
        below = (route for path, route in self._folders.items() if request.path.startswith(path))
        folder = next(below, None)
        route = folder or self._routes.get(request.path)
        if route is None:
            raise BadRequest(HTTPStatus.NOT_FOUND)
        if request.method not in (("GET", "HEAD", "POST") if folder else ("GET", "HEAD")):
            raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED)
        answering = sum(each.is_answering for each in self._connections)
        if answering >= self._limits.max_connections // 2 and request.path not in PROBES:
            raise BadRequest(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once; try again")
        connection.is_answering = True
        try:
            seconds = None if request.method == "POST" else self._limits.page_seconds
            async with asyncio.timeout(seconds):
                return await route(request)
        except TimeoutError:
            log.warning("a page took too long", extra={"path": request.path})
            message = "this page took too long; try again"
            raise BadRequest(HTTPStatus.SERVICE_UNAVAILABLE, message) from None
        except Exception:
            log.exception("a page failed", extra={"path": request.path})
            raise BadRequest(HTTPStatus.INTERNAL_SERVER_ERROR) from None
        finally:
            connection.is_answering = False
