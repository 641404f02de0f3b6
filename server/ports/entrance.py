"""Entrance of a server of gRPC: what each call meets before its handler.

call ──> token ──> trace ──> guards of messages and answers ──> handler
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from braid.server.http2.arrivals import Arrivals
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.tracing import Sampling, start_tracing
from braid.server.rpc.guarding import Guarding
from braid.server.security.certificates import Certificates, TlsFiles
from braid.server.security.gate import Gate
from braid.server.security.roles import Role
from braid.server.security.tokens import Tokens, TokenSource
from braid.server.settings import Settings


class Entrance:
    """What a call meets before its handler: tokens, tracing, guards."""

    def __init__(self, settings: Settings, sampling: Sampling, memory: CallMemory) -> None:
        """Read the tokens and certificates.

        Args:
            settings: tokens, certificates, what strangers may do.
            sampling: which requests are traced.
            memory: that answers are charged to.

        Raises:
            StartupError: tokens or certificates cannot be used.
        """
        self.tokens = _tokens(settings)
        self.certificates = _certificates(settings)
        self.telemetry = start_tracing(settings.tracing, sampling)
        self.gate = _main_gate(settings, self.tokens)
        self.memory = memory
        self.arrivals = Arrivals(memory.limits)

    def guards(self, gate: Sequence[Gate]) -> list[grpc.aio.ServerInterceptor]:
        traced = () if self.telemetry is None else (self.telemetry,)
        return [*gate, *traced, Guarding(self.memory)]


def _main_gate(settings: Settings, tokens: Tokens) -> list[Gate]:
    """Return the gate of the main port; none if every caller may do everything."""
    if not tokens.are_required and not settings.admin_address:
        return []
    anonymous = Role.INFER if settings.allow_unauthenticated else Role.ANYONE
    return [Gate(tokens, anonymous=anonymous, admin_elsewhere=settings.admin_address)]


def _tokens(settings: Settings) -> Tokens:
    admin, infer = settings.admin_token.get_secret_value(), settings.infer_token.get_secret_value()
    return Tokens(
        [
            TokenSource(Role.ADMIN, settings.admin_token_file, admin),
            TokenSource(Role.INFER, settings.infer_token_file, infer),
        ]
    )


def _certificates(settings: Settings) -> Certificates | None:
    """Return the certificates; None: no TLS is configured."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificates(
        TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    )
