"""In an ingress: RPCs that run models are answered by the owner through shared memory.

    headers ──> a queue was full lately? ──yes──> ask the owner ──refused──> refused, unread
                         └──no──> message is read ──> OwnerLink.infer ──> reply, as it came

Messages are parsed here, too: what is none ends here as with one process, and the owner's reading
of it cannot fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc

from core.errors import BraidError
from server.ingress.calls import CALLS, InferenceCall
from server.ingress.owner_link import OwnerLink, Trace
from server.servicers.streams import answers
from server.status import Handler, answering, refusing
from server.telemetry import CARRIED

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class Underway:
    """RPCs under way in this process."""

    calls: int = 0

    def __enter__(self) -> None:
        self.calls += 1

    def __exit__(self, *_: object) -> None:
        self.calls -= 1


class InferenceHandlers(grpc.GenericRpcHandler):
    """The RPCs of ``CALLS``."""

    def __init__(self, link: OwnerLink, underway: Underway, *, is_traced: bool) -> None:
        self._link = link
        self._underway = underway
        self._is_traced = is_traced
        self._handlers = {method: self._handler(method, call) for method, call in CALLS.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """The handler of a call; None: it does not run a model."""
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: str, call: InferenceCall) -> Handler:
        async def unary(message: bytes, context: Context) -> bytes:
            with self._underway:
                async with answering(context):
                    return await self._infer(method, context, waits=False)(message)

        async def stream(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            infer = self._infer(method, context, waits=True)
            replies = answers(messages, infer, in_order=call.in_order)
            with self._underway:
                async with answering(context), aclosing(replies):
                    async for reply in replies:
                        yield reply

        def checked(message: bytes) -> bytes:
            call.read(message)
            return message

        if call.is_stream:
            return grpc.stream_stream_rpc_method_handler(stream, checked)
        return grpc.unary_unary_rpc_method_handler(unary, checked)

    def _infer(
        self, method: str, context: Context, *, waits: bool
    ) -> Callable[[bytes], Awaitable[bytes]]:
        trace = _trace(context) if self._is_traced else {}

        async def infer(message: bytes) -> bytes:
            seconds = context.time_remaining()
            return await self._link.infer(method, message, seconds, trace, waits=waits)

        return infer


class AskFirst(grpc.aio.ServerInterceptor):
    """While queues are full, asks the owner before a message is read."""

    def __init__(self, link: OwnerLink) -> None:
        self._link = link

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The call's own handler, or one that refuses it."""
        call = CALLS.get(details.method)
        if call is not None and not call.is_stream and self._link.is_crowded:
            try:
                await self._link.check_refusal()
            except BraidError as error:
                return refusing(error)
        return await continuation(details)


def _trace(context: Context) -> Trace:
    metadata = context.invocation_metadata() or ()
    return {key: value for key, value in metadata if key in CARRIED and isinstance(value, str)}
