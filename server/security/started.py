"""Calls that come while the server starts wait until it knows its models; health is told at once.

So its ports are open from the beginning: who connects early need not try again later, which
gRPC's clients do after a second and more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from braid.server.rpc.status import Handler
from braid.server.security.tokens import Role, needed_role

Details = grpc.HandlerCallDetails


class Started(grpc.aio.ServerInterceptor):
    """Interceptor that lets calls wait. Belongs to the event loop."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.event.set()

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler | None]], details: Details
    ) -> Handler | None:
        if not self.event.is_set() and needed_role(details.method) is not Role.ANYONE:
            await self.event.wait()
        return await continuation(details)
