"""In an ingress: every RPC that does not run a model is passed on to the owner as it came.

    caller ──bytes──> Forwarder ──bytes, Unix socket──> owner: the services of ``server.frontend``

One handler of streams does for all arities: on the wire they are the same. Metadata, deadline,
cancellation, status, details and trailing metadata go along; the caller's token does not, it was
checked here. So messages are neither parsed nor known here, and nothing is implemented twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc

from core.errors import Unavailable
from server.grpc_ports import UNLIMITED
from server.ingress.inference import Underway
from server.status import Handler, answering

Context = grpc.aio.ServicerContext[Any, Any]
Metadata = tuple[tuple[str, str | bytes], ...]

METADATA_BYTES = 64 * 1024
"""More than callers may send or receive, so that their limits are the ones that count."""

_OWN = ("authorization", "user-agent", "content-type", "te")
_RESERVED = (":", "grpc-")


class Forwarder(grpc.GenericRpcHandler):
    """Answers whatever no handler before it does."""

    def __init__(self, owner_socket: Path, underway: Underway) -> None:
        limits = (("grpc.max_metadata_size", METADATA_BYTES), *UNLIMITED)
        self._channel = grpc.aio.insecure_channel(f"unix:{owner_socket}", options=limits)
        self._underway = underway

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """A handler that knows the method's name only."""
        method = handler_call_details.method

        async def forward(messages: AsyncIterator[bytes], context: Context) -> None:
            with self._underway:
                await self._forward(method, messages, context)

        return grpc.stream_stream_rpc_method_handler(forward)

    async def _forward(self, method: str, messages: AsyncIterator[bytes], context: Context) -> None:
        start: Any = self._channel.stream_stream(method)
        call = start(
            messages,
            timeout=context.time_remaining(),
            metadata=passed_on(context.invocation_metadata() or ()),
        )
        try:
            async for message in call:
                await context.write(message)
        except grpc.aio.AioRpcError:
            pass  # the status says it
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # by the caller, not by the owner
        finally:
            call.cancel()
        await _end(context, call)


async def _end(context: Context, call: Any) -> None:
    """End the caller's RPC as the owner ended its own."""
    code, trailing = await call.code(), passed_on(await call.trailing_metadata() or ())
    if code is grpc.StatusCode.UNAVAILABLE and not trailing:
        async with answering(context):  # said by gRPC, with the name of our socket
            raise Unavailable("the server is restarting; try again in a moment")
    context.set_trailing_metadata(trailing)
    if code is not grpc.StatusCode.OK:
        await context.abort(code, await call.details() or "", trailing)


def passed_on(metadata: Iterable[Any]) -> Metadata:
    """What of a caller's metadata is the owner's business, and the other way round."""
    return tuple(
        (key, value)
        for key, value in metadata
        if key not in _OWN and (not key.startswith(_RESERVED) or key == "grpc-status-details-bin")
    )
