"""Ports of gRPC: services, guards and limits of each one.

BRAID_GRPC_PORT       everything, or everything but admin calls where those have their own
BRAID_ADMIN_ADDRESS   everything, on another port or a Unix socket
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from braid.core.errors import StartupError
from braid.server.http2.server import Server
from braid.server.http2.streams import ConnectionLimits
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.tracing import Sampling
from braid.server.ports.entrance import Entrance
from braid.server.rpc.guarding import filter_grpc_log
from braid.server.security.addresses import check_exposure, is_loopback
from braid.server.security.certificates import Certificates
from braid.server.security.gate import Gate
from braid.server.settings import Settings

MESSAGE_OVERHEAD_BYTES = 64 * 1024  # names, shapes and framing around the tensors
UPLOAD_CHUNK_BYTES = 4 << 20

KEEPALIVE_ANSWER_MS = 20_000
CLIENT_PING_MS = 5_000

AddServices = Callable[[grpc.aio.Server], None]
"""Adds all services to a server."""


class Ports(Protocol):
    """Where a front end's services are called."""

    entrance: Entrance

    async def start(self) -> int:
        """Take calls, now or soon; returns the port that callers connect to."""

    async def close(self) -> None:
        """Take no more calls and end those under way."""


MakePorts = Callable[[Settings, AddServices, Sampling, CallMemory], Ports]
"""Makes where a front end's services are called: ``GrpcPorts``, or another server's ports."""


class GrpcPorts:
    """Every gRPC server of this process. Belongs to the event loop."""

    def __init__(
        self,
        settings: Settings,
        add_services: AddServices,
        sampling: Sampling,
        memory: CallMemory,
    ) -> None:
        """Make the servers.

        Args:
            settings: addresses, tokens, certificates and limits.
            add_services: to each server.
            sampling: which requests are traced.
            memory: that answers are charged to.

        Raises:
            StartupError: tokens or certificates cannot be used, or other machines need none.
        """
        self._settings = settings
        self.entrance = entrance = Entrance(settings, sampling, memory)
        in_loop = takes_event_loop(settings)
        self._main = _server(settings, entrance, entrance.gate, in_loop=in_loop)
        servers = [self._main]
        self._admin: grpc.aio.Server | None = None
        if settings.admin_address:
            # gRPC's own has Unix sockets, and TLS.
            self._admin = _server(settings, entrance, [Gate(entrance.tokens)], in_loop=False)
            servers.append(self._admin)
        for server in servers:
            add_services(server)
        self._check_exposure()

    def _check_exposure(self) -> None:
        settings, admin = self._settings, self._settings.admin_address
        entrance = self.entrance
        is_mutual = entrance.certificates is not None and entrance.certificates.are_mutual
        for host in (settings.host, admin.rpartition(":")[0] if admin else settings.host):
            check_exposure(
                "unix:" if host == "unix" else host,
                authenticated=entrance.tokens.are_required or is_mutual,
                allowed=settings.allow_unauthenticated,
            )

    async def start(self) -> int:
        """Listen; returns the port of the main server.

        Raises:
            StartupError: an address cannot be used.
        """
        certificates = self.entrance.certificates
        address = f"{self._settings.host}:{self._settings.grpc_port}"
        port = _bind(self._main, address, "BRAID_GRPC_PORT or --grpc-port", certificates)
        await self._main.start()
        if self._admin is not None:
            await self._start_admin(self._admin)
        return port

    async def close(self) -> None:
        """Take no more calls and end those under way."""
        for server in filter(None, (self._main, self._admin)):
            await server.stop(None)

    async def _start_admin(self, server: grpc.aio.Server) -> None:
        address = self._settings.admin_address
        if address.startswith("unix:"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address.removeprefix("unix:"))  # of a server that was killed
            before = os.umask(0o177)  # only the server's user may connect
            try:
                _bind(server, address, "BRAID_ADMIN_ADDRESS", None)
                await server.start()
            finally:
                os.umask(before)
        else:
            _bind(server, address, "BRAID_ADMIN_ADDRESS", self.entrance.certificates)
            await server.start()


def takes_event_loop(settings: Settings) -> bool:
    """Bool: the event loop serves the main port, which has no TLS then."""
    if settings.tls_certificate is not None and settings.tls_key is not None:
        return False
    if settings.grpc_transport == "auto":
        return is_loopback(settings.host)
    return settings.grpc_transport == "asyncio"


def largest_message_bytes(settings: Settings) -> int:
    """Bytes of the largest message that a server of gRPC takes."""
    limit = settings.max_message_bytes + MESSAGE_OVERHEAD_BYTES
    return max(limit, UPLOAD_CHUNK_BYTES + 1024)


def _server(
    settings: Settings, entrance: Entrance, gate: Sequence[Gate], *, in_loop: bool
) -> grpc.aio.Server:
    """Return a server that does not listen yet, whose callers a gate checks."""
    filter_grpc_log()
    guards = entrance.guards(gate)
    message_bytes = largest_message_bytes(settings)
    if in_loop:
        limits = ConnectionLimits(
            message_bytes=message_bytes,
            streams=settings.max_concurrent_streams,
            keepalive_s=settings.keepalive_seconds,
            answer_s=KEEPALIVE_ANSWER_MS / 1000,
        )
        return Server(limits, entrance.memory.limits, guards)
    return grpc.aio.server(
        interceptors=guards,
        options=[
            ("grpc.max_receive_message_length", message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", round(settings.keepalive_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_ANSWER_MS),
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_ANSWER_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),  # however quiet a connection is
            # Clients may ask as often; gRPC's own limit of five minutes ends quiet watches.
            ("grpc.http2.min_ping_interval_without_data_ms", CLIENT_PING_MS),
        ],
    )


def _bind(
    server: grpc.aio.Server, address: str, setting: str, certificates: Certificates | None
) -> int:
    try:
        if certificates is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, certificates.grpc_credentials())
    except RuntimeError as error:
        raise StartupError(
            f"gRPC address {address} cannot be used (taken?); choose another with {setting}"
        ) from error
