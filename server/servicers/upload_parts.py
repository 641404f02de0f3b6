"""The parts of an upload, as long as they keep arriving, and the caller that the upload is of.

A caller that stops sending must not keep its place among the uploads. The server may wait
``idle_s`` seconds for an upload; each part that arrives restores time in proportion to its bytes.
So neither silence nor a byte now and then keeps a place for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import grpc

from braid.core.errors import DeadlineExceeded
from braid.server.security.peers import network_of_peer
from braid_client.wire import admin_pb2 as wire

SLOWEST_BYTES_PER_S = 8 << 10
"""An upload that arrives more slowly uses up its seconds."""


class IdleTime:
    """Seconds that the server may still wait for the parts of one upload."""

    def __init__(self, idle_s: float) -> None:
        self.left_s = self._idle_s = idle_s

    def arrived(self, waited_s: float, size_bytes: int) -> None:
        """Subtract the wait for a part, and restore time for its bytes."""
        restored_s = size_bytes / SLOWEST_BYTES_PER_S
        self.left_s = min(self._idle_s, self.left_s - waited_s + restored_s)


async def arriving(
    parts: AsyncIterator[wire.RegisterModelRequest], idle_s: float
) -> AsyncIterator[wire.RegisterModelRequest]:
    """Yield the parts.

    Raises:
        DeadlineExceeded: they stopped, or come too slowly.
    """
    idle = IdleTime(idle_s)
    while True:
        began = monotonic()
        try:
            async with asyncio.timeout(idle.left_s):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise DeadlineExceeded(
                f"the upload stood still for {idle_s:g} s in all (BRAID_UPLOAD_IDLE_SECONDS); send "
                "the file again, over a connection that does not stop"
            ) from None
        idle.arrived(monotonic() - began, len(part.chunk))
        yield part
        del part


def caller_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Network of the caller, as callers choose freely how often they connect."""
    return network_of_peer(context.peer())
