"""The gRPC ports: which services each one offers, who may call them, and its limits.

BRAID_GRPC_PORT       everything, or everything but admin calls where those have their own
BRAID_ADMIN_ADDRESS   everything, on another port or a Unix socket
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import grpc

from core.errors import StartupError
from server.security.certificates import Certificates, TlsFiles
from server.security.exposure import check_exposure
from server.security.gate import Gate
from server.security.roles import Role
from server.security.tokens import Tokens, TokenSource
from server.settings import Settings
from server.telemetry import start_tracing
from server.tracing import Sampling

MESSAGE_OVERHEAD_BYTES = 64 * 1024  # names, shapes and framing around the tensors
UPLOAD_CHUNK_BYTES = 4 << 20

AddServices = Callable[[grpc.aio.Server], None]
"""Adds all services to a server."""


class GrpcPorts:
    """Every gRPC server of this process. Belongs to the event loop."""

    def __init__(self, settings: Settings, add_services: AddServices, sampling: Sampling) -> None:
        """Make the servers.

        Raises:
            StartupError: tokens or certificates cannot be used, or strangers could come in.
        """
        self._settings = settings
        self.tokens = configured_tokens(settings)
        self.certificates = configured_certificates(settings)
        self._telemetry = start_tracing(settings.tracing, sampling)
        anonymous = Role.INFER if settings.allow_unauthenticated else Role.ANYONE
        admin = settings.admin_address
        self._main = self._server(
            Gate(self.tokens, anonymous=anonymous, admin_elsewhere=admin), add_services
        )
        self._admin = self._server(Gate(self.tokens), add_services) if admin else None
        for host in (settings.host, admin.rpartition(":")[0] if admin else settings.host):
            check_exposure(
                "unix:" if host == "unix" else host,
                authenticated=self.tokens.are_required or self._is_mutual,
                allowed=settings.allow_unauthenticated,
            )

    @property
    def _is_mutual(self) -> bool:
        return self.certificates is not None and self.certificates.are_mutual

    async def start(self) -> int:
        """Listen; returns the port of the main server.

        Raises:
            StartupError: an address cannot be used.
        """
        settings = self._settings
        address = f"{settings.host}:{settings.grpc_port}"
        port = self._bind(self._main, address, "BRAID_GRPC_PORT or --grpc-port")
        await self._main.start()
        if self._admin is not None:
            await self._start_admin(self._admin)
        return port

    async def _start_admin(self, server: grpc.aio.Server) -> None:
        address = self._settings.admin_address
        if not address.startswith("unix:"):
            self._bind(server, address, "BRAID_ADMIN_ADDRESS")
            await server.start()
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address.removeprefix("unix:"))  # of a server that was killed
        before = os.umask(0o177)
        try:
            self._bind(server, address, "BRAID_ADMIN_ADDRESS")
            await server.start()
        finally:
            os.umask(before)

    def _server(self, gate: Gate, add_services: AddServices) -> grpc.aio.Server:
        settings = self._settings
        limit = settings.max_message_bytes + MESSAGE_OVERHEAD_BYTES
        guarded = self.tokens.are_required or bool(settings.admin_address)
        interceptors: list[grpc.aio.ServerInterceptor] = [gate] if guarded else []
        if self._telemetry is not None:
            interceptors.append(self._telemetry)
        server = grpc.aio.server(
            interceptors=interceptors,
            options=[
                ("grpc.max_receive_message_length", max(limit, UPLOAD_CHUNK_BYTES + 1024)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
                ("grpc.so_reuseport", 0),
            ],
        )
        add_services(server)
        return server

    def _bind(self, server: grpc.aio.Server, address: str, setting: str) -> int:
        try:
            if self.certificates is None or address.startswith("unix:"):
                return server.add_insecure_port(address)
            return server.add_secure_port(address, self.certificates.grpc_credentials())
        except RuntimeError as error:
            raise StartupError(
                f"gRPC address {address} cannot be used (taken?); choose another with {setting}"
            ) from error


def configured_tokens(settings: Settings) -> Tokens:
    """The tokens of all roles."""
    return Tokens(
        [
            TokenSource(
                Role.ADMIN, settings.admin_token_file, settings.admin_token.get_secret_value()
            ),
            TokenSource(
                Role.INFER, settings.infer_token_file, settings.infer_token.get_secret_value()
            ),
        ]
    )


def configured_certificates(settings: Settings) -> Certificates | None:
    """TLS, if it is configured."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificates(
        TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    )
