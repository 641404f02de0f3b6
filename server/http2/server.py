"""Server of gRPC on the event loop, with the surface of ``grpc.aio.Server``. No TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from braid.server.http2.bounds.turns import Turns
from braid.server.http2.calls import Call
from braid.server.http2.connection import HttpConnection
from braid.server.http2.streams import ConnectionLimits, HttpStream
from braid.server.inference.call_memory import CallMemory, MemoryLimits

FLUSH_SECONDS = 1.0
"""Time for the last bytes of answers to go out after their calls have ended."""


class Server(grpc.aio.Server):
    """Server whose calls are handled in the event loop alone."""

    def __init__(
        self, limits: ConnectionLimits, memory: MemoryLimits, interceptors: Sequence[Any] = ()
    ) -> None:
        """Serve nothing yet; ``memory`` bounds messages on their way in."""
        self._limits = limits
        self._messages = CallMemory(memory)
        self._turns = Turns()
        self._interceptors = tuple(interceptors)
        self._generic: list[Any] = []
        self._registered: dict[str, Any] = {}
        self._sockets: list[socket.socket] = []
        self._listening: list[asyncio.Server] = []
        self._connections: set[HttpConnection] = set()
        self._calls: set[Call] = set()
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._emptied = asyncio.Event()  # no connection is left
        self._emptied.set()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """Offer methods that are asked for by name."""
        self._generic += generic_rpc_handlers

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Offer methods of a service."""
        for name, handler in method_handlers.items():
            self._registered[f"/{service_name}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        """Bind an address, ``host:port``; returns the port.

        Raises:
            RuntimeError: it cannot be bound.
        """
        host, _, number = address.rpartition(":")
        port = int(number)
        try:
            found = socket.getaddrinfo(
                host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, place in dict.fromkeys(found):
                port = self._bind(socket.socket(family, kind, protocol), place, port)
        except OSError as error:
            for each in self._sockets:
                each.close()
            raise RuntimeError(f"Failed to bind to address {address}: {error}") from error
        return port

    def _bind(self, listening: socket.socket, place: Any, port: int) -> int:
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listening.family == socket.AF_INET6:
            everywhere = place[0] == "::"
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not everywhere))
        listening.bind((place[0], port, *place[2:]))
        listening.listen(128)
        return int(listening.getsockname()[1])

    def add_secure_port(self, address: str, server_credentials: Any) -> int:
        """TLS is left to ``grpc.aio.server``."""
        raise NotImplementedError

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            self._listening.append(await loop.create_server(self._connected, sock=each))

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; end those under way after ``grace`` seconds, None: at once."""
        self._is_stopping = True
        for listening in self._listening:
            listening.close()
        for each in self._sockets:
            each.close()
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
        self._stopped.set()

    async def _flush(self) -> None:
        """Wait until the connections that are closing have sent everything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._emptied.wait()
        for connection in list(self._connections):
            connection.abort()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until the server is stopped; returns bool: ``timeout`` seconds were not enough."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
            return False
        return True

    def _connected(self) -> HttpConnection:
        connection = HttpConnection(self._limits, self._messages, self._turns, self._begin)
        connection.on_closed = self._closed
        connection.on_made = self._made
        return connection

    def _made(self, connection: HttpConnection) -> None:
        self._connections.add(connection)
        self._emptied.clear()
        if self._is_stopping:
            connection.abort()

    def _closed(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._emptied.set()

    def _begin(self, connection: HttpConnection, stream: HttpStream) -> Call:
        call = Call(connection, stream, self._interceptors, self._find)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def _find(self, details: Any) -> Any:
        handler = self._registered.get(details.method)
        if handler is not None:
            return handler
        for each in self._generic:
            handler = each.service(details)
            if handler is not None:
                return handler
        return None
