"""Interceptor that admits or refuses a call before anything of its body is read.

Streams may stay open for days: they end as well, uploads among them, soon after their token is
withdrawn.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from braid.core.errors import BraidError, PermissionDenied, Unauthenticated
from braid.server.http2.calls import behaviour_of
from braid.server.rpc.status import Handler, answering, refusing, with_behaviour
from braid.server.security.tokens import NEEDED, Role, Tokens, needed_role

log = logging.getLogger("braid.security")

RECHECK_SECONDS = 5.0
"""How often the token of an open stream is looked at again."""

Details = grpc.HandlerCallDetails


@dataclass(slots=True)
class DescribedCall:
    """Method and metadata of a call over HTTP, for the gate and for tracing."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class Gate(grpc.aio.ServerInterceptor):
    """Interceptor that checks the callers of one port."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        anonymous: Role = Role.ANYONE,
        admin_elsewhere: str = "",
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        """``anonymous``: what callers without a token may do. ``admin_elsewhere``: if not here."""
        self._tokens = tokens
        self._anonymous = anonymous if tokens.are_required else Role.ADMIN
        self._admin_elsewhere = admin_elsewhere
        self._recheck_seconds = recheck_seconds

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler | None]], details: Details
    ) -> Handler | None:
        """Return the call's own handler, or one that refuses the call."""
        refusal = self.refusal(details)
        if refusal is None:
            return self._rechecked(await continuation(details), details)
        return refusing(refusal)

    def admits(self, metadata: Any, needed: Role) -> bool:
        role = self._role(DescribedCall("", metadata))
        return role is not None and max(role, self._anonymous) >= needed

    def refusal(self, details: Details) -> BraidError | None:
        """Return why a call is refused, and log it; None: it is let in."""
        refusal = self._refusal(details)
        if refusal is not None:
            self._log(refusal, details)
        return refusal

    def _rechecked(self, handler: Handler | None, details: Details) -> Handler | None:
        """Return the handler; for a stream, one that ends when its token is withdrawn."""
        if handler is None or not (handler.request_streaming or handler.response_streaming):
            return handler
        behaviour = behaviour_of(handler)
        is_open = needed_role(details.method) is Role.ANYONE
        if is_open or not inspect.iscoroutinefunction(behaviour):
            return handler

        async def method(request: Any, context: Any) -> Any:
            call = asyncio.ensure_future(behaviour(request, context))
            refusal: BraidError | None = None
            try:
                while not (await asyncio.wait({call}, timeout=self._recheck_seconds))[0]:
                    if refusal := self._refusal(details):
                        break
            finally:
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            if refusal is None:
                return await call
            self._log(refusal, details)
            async with answering(context):
                raise refusal

        return with_behaviour(handler, method)

    def _log(self, refusal: BraidError, details: Details) -> None:
        is_known = details.method in NEEDED or details.method.startswith("/braid.v1.")
        log.info(
            "call refused",
            extra={
                "method": details.method if is_known else "other",
                "kind": type(refusal).__name__,
            },
        )

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
        may = "run models" if role is Role.INFER else "read metrics"
        wanted = "for admins" if needed is Role.ADMIN else "that runs models"
        return PermissionDenied(f"this token may {may}; the call needs one {wanted}")

    def _role(self, details: Details) -> Role | None:
        if not self._tokens.are_required:
            return Role.ANYONE
        metadata = {
            key: value for key, value in details.invocation_metadata or () if isinstance(value, str)
        }
        return self._tokens.role_in(metadata)


class Started(grpc.aio.ServerInterceptor):
    """Interceptor that lets calls wait until the server knows its models; health is told at once.

    So the ports are open from the beginning: who connects early need not try again later, which
    gRPC's clients do after a second and more. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.event.set()

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler | None]], details: Details
    ) -> Handler | None:
        if not self.event.is_set() and needed_role(details.method) is not Role.ANYONE:
            await self.event.wait()
        return await continuation(details)
