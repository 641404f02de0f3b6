"""Ports of gRPC: services, guards and limits of each one.

BRAID_GRPC_PORT       everything, or everything but admin calls where those have their own
BRAID_ADMIN_ADDRESS   everything, on another port or a Unix socket
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from braid.core.errors import StartupError
from braid.server.http2.accepting import Connections, most_connections
from braid.server.http2.arrivals import Arrivals
from braid.server.http2.server import Server
from braid.server.http2.streams import ConnectionLimits
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.tracing import Sampling, start_tracing
from braid.server.rpc.guarding import Guarding
from braid.server.security.addresses import check_exposure, network_of
from braid.server.security.certificates import Certificates, TlsFiles
from braid.server.security.gate import Gate, Started
from braid.server.security.tokens import OPEN, Role, Tokens, TokenSource
from braid.server.settings import Settings

MESSAGE_OVERHEAD_BYTES = 64 * 1024  # names, shapes and framing around the tensors
UPLOAD_CHUNK_BYTES = 4 << 20

CONCURRENT_STREAMS = 1024
"""Calls under way at once on one connection."""

KEEPALIVE_SECONDS = 60.0
"""Time without a byte after which a connection is checked."""

KEEPALIVE_ANSWER_SECONDS = 20.0


class CallChecks:
    """Checks that a call passes before its handler: tokens, tracing, guards."""

    def __init__(self, settings: Settings, sampling: Sampling, memory: CallMemory) -> None:
        """Read the tokens and certificates; StartupError: they cannot be used."""
        self.tokens = _tokens(settings)
        self.certificates = _certificates(settings)
        self.telemetry = start_tracing(settings.tracing, sampling)
        self.gate = _main_gate(settings, self.tokens)
        self.memory = memory
        self.arrivals = Arrivals(memory)
        most_bytes = memory.limits.all_bytes
        self.connections = Connections(
            most_connections(most_bytes), max(16 << 20, most_bytes // 8), network_of, self._is_token
        )
        self.started = Started()

    def _is_token(self, authorization: str) -> bool:
        return bool(self.tokens.role_in({"authorization": authorization}))

    def guards(self, gate: Sequence[Gate]) -> list[grpc.aio.ServerInterceptor]:
        traced = () if self.telemetry is None else (self.telemetry,)
        return [*gate, self.started, *traced, Guarding(self.memory)]


def _main_gate(settings: Settings, tokens: Tokens) -> list[Gate]:
    """Return the gate of the main port; none if every caller may do everything."""
    if not tokens.are_required and not settings.admin_address:
        return []
    anonymous = Role.INFER if settings.allow_unauthenticated else Role.ANYONE
    return [Gate(tokens, anonymous=anonymous, admin_elsewhere=settings.admin_address)]


def _tokens(settings: Settings) -> Tokens:
    given = {
        Role.ADMIN: (settings.admin_token_file, settings.admin_token.get_secret_value()),
        Role.INFER: (settings.infer_token_file, settings.infer_token.get_secret_value()),
        Role.METRICS: (settings.metrics_token_file, ""),
    }
    return Tokens([TokenSource(role, file, token) for role, (file, token) in given.items()])


def _certificates(settings: Settings) -> Certificates | None:
    """Return the certificates; None: no TLS is configured."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificates(
        TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    )


AddServices = Callable[[grpc.aio.Server], None]
"""Adds all services to a server."""


class Ports(Protocol):
    """Ports on which a server's gRPC services are called."""

    checks: CallChecks

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
        """Make the servers. StartupError: tokens or certificates are missing or unusable."""
        self._settings = settings
        self.checks = checks = CallChecks(settings, sampling, memory)
        self._main = server_of(settings, checks, checks.gate)
        servers = [self._main]
        self._admin: Server | None = None
        if settings.admin_address:
            self._admin = server_of(settings, checks, [Gate(checks.tokens)])
            servers.append(self._admin)
        for server in servers:
            add_services(server)
        self._check_exposure()

    def _check_exposure(self) -> None:
        settings, admin = self._settings, self._settings.admin_address
        checks = self.checks
        is_mutual = checks.certificates is not None and checks.certificates.are_mutual
        for host in (settings.host, admin.rpartition(":")[0] if admin else settings.host):
            check_exposure(
                "unix:" if host == "unix" else host,
                authenticated=checks.tokens.are_required or is_mutual,
                allowed=settings.allow_unauthenticated,
            )

    async def start(self) -> int:
        """Listen; returns the port of the main server. StartupError: an address cannot be used."""
        certificates = self.checks.certificates
        address = f"{self._settings.host}:{self._settings.grpc_port}"
        port = _bind(self._main, address, "BRAID_GRPC_PORT or --grpc-port", certificates)
        await self._main.start()
        if self._admin is not None:
            await self._start_admin(self._admin)
        return port

    async def close(self) -> None:
        for server in filter(None, (self._main, self._admin)):
            await server.stop(None)

    async def _start_admin(self, server: Server) -> None:
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
            _bind(server, address, "BRAID_ADMIN_ADDRESS", self.checks.certificates)
            await server.start()


def largest_message_bytes(settings: Settings) -> int:
    limit = settings.max_message_bytes + MESSAGE_OVERHEAD_BYTES
    return max(limit, UPLOAD_CHUNK_BYTES + 1024)


def server_of(settings: Settings, checks: CallChecks, gate: Sequence[Gate]) -> Server:
    limits = ConnectionLimits(
        message_bytes=largest_message_bytes(settings),
        streams=CONCURRENT_STREAMS,
        keepalive_s=KEEPALIVE_SECONDS,
        answer_s=KEEPALIVE_ANSWER_SECONDS,
        open_methods=OPEN,
    )
    return Server(limits, checks.arrivals, checks.guards(gate), checks.connections)


def _bind(server: Server, address: str, setting: str, certificates: Certificates | None) -> int:
    try:
        if certificates is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, certificates.grpc_context())
    except RuntimeError as error:
        raise StartupError(
            f"gRPC address {address} cannot be used (taken?); choose another with {setting}"
        ) from error
