"""The interceptor that lets a call in or refuses it, before anything of its body is read.

call ──> role it needs ──> role of its token ──> servicer
                                  └──> UNAUTHENTICATED (no or wrong token)
                                  └──> PERMISSION_DENIED (a token for less, or the wrong port)
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import grpc

from core.errors import BraidError, PermissionDenied, Unauthenticated
from server.security.roles import NEEDED, Role, needed_role
from server.security.tokens import Tokens
from server.status import Handler, refusing

log = logging.getLogger("braid.security")

Details = grpc.HandlerCallDetails


class Gate(grpc.aio.ServerInterceptor):
    """Guards one port."""

    def __init__(
        self, tokens: Tokens, *, anonymous: Role = Role.ANYONE, admin_elsewhere: str = ""
    ) -> None:
        """Guard a port.

        Args:
            tokens: that count.
            anonymous: what callers without any token may do.
            admin_elsewhere: where admin calls are answered, if not here.
        """
        self._tokens = tokens
        self._anonymous = anonymous if tokens.are_required else Role.ADMIN
        self._admin_elsewhere = admin_elsewhere

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler | None]], details: Details
    ) -> Handler | None:
        """The call's own handler, or one that refuses it."""
        refusal = self._refusal(details)
        if refusal is None:
            return await continuation(details)
        known = details.method in NEEDED or details.method.startswith("/braid.v1.")
        log.info(
            "call refused",
            extra={
                "method": details.method if known else "other",
                "kind": type(refusal).__name__,
            },
        )
        return refusing(refusal)

    def _refusal(self, details: Details) -> BraidError | None:
        needed = needed_role(details.method)
        if needed is Role.ADMIN and self._admin_elsewhere:
            return PermissionDenied(
                f"this port answers no admin calls; they go to {self._admin_elsewhere}"
            )
        if needed is Role.ANYONE:
            return None
        role = self._role(details)
        if role is None:
            return Unauthenticated("this token is not known; send `authorization: Bearer TOKEN`")
        if max(role, self._anonymous) >= needed:
            return None
        if role is Role.ANYONE:
            return Unauthenticated("this call needs a token; send `authorization: Bearer TOKEN`")
        return PermissionDenied("this token may run models; the call needs one for admins")

    def _role(self, details: Details) -> Role | None:
        """None: a token that nobody has."""
        if not self._tokens.are_required:
            return Role.ANYONE
        metadata = {
            key: value for key, value in details.invocation_metadata or () if isinstance(value, str)
        }
        return self._tokens.role_in(metadata)
