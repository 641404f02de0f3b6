"""Messages that are none of their type: INVALID_ARGUMENT on every method of every service.

    call ──gate──> handler ──this──> the same handler, which says what is wrong with its messages
                                          └──> one line in the log, seldom

gRPC reads a message before a servicer sees it, and answers what cannot be read with UNKNOWN and a
traceback in the log. So handlers are replaced, on their way to gRPC, by ones whose reading does not
fail: a single message is refused in place of being handled, in a stream its iteration raises.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from core.errors import UndecodableMessage
from server.logs import Seldom
from server.status import Handler, answering

log = logging.getLogger("braid.rpc")

LOG_SECONDS = 60.0
"""Between two lines about the messages of one method."""

Behaviour = Callable[[Any, Any], Any]
Details = grpc.HandlerCallDetails

_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class Decoding(grpc.aio.ServerInterceptor):
    """Guards one server's methods; comes after whatever refuses calls unread."""

    def __init__(self) -> None:
        self._guarded: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler | None]], details: Details
    ) -> Handler | None:
        """The call's handler, guarded; each is made once."""
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        known = self._guarded.get(details.method)
        if known is None or known[0] is not handler:
            known = self._guarded[details.method] = handler, guarded(handler, details.method)
        return known[1]


def guarded(handler: Handler, method: str) -> Handler:
    """A handler that refuses what ``handler`` cannot read."""
    assert handler.request_deserializer is not None
    behaviour: Any = (
        handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
    )
    make = _MAKERS[handler.request_streaming, handler.response_streaming]
    wrap = _generator if inspect.isasyncgenfunction(behaviour) else _coroutine
    read = _reader(handler.request_deserializer, method, handler.request_streaming)
    return make(wrap(behaviour), read, handler.response_serializer)


def _reader(decode: Callable[[bytes], Any], method: str, is_stream: bool) -> Callable[[bytes], Any]:
    """As ``decode``; of what it cannot read it returns the error, or raises it in a stream."""
    seldom = Seldom(LOG_SECONDS)

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:  # whatever a parser makes of such bytes
            held_back = seldom.passes()
            if held_back is not None:
                facts = {"method": method, "size_bytes": len(data), "kind": type(error).__name__}
                log.warning("a message cannot be decoded", extra={**facts, "not_logged": held_back})
            undecodable = UndecodableMessage(method)
            if is_stream:
                raise undecodable from None
            return undecodable

    return read


def _coroutine(behaviour: Behaviour) -> Behaviour:
    """For a method that returns its answer, or writes its answers."""

    async def guarded_method(request: Any, context: Any) -> Any:
        try:
            if type(request) is UndecodableMessage:
                raise request
            return await behaviour(request, context)
        except UndecodableMessage as error:
            async with answering(context):
                raise error

    return guarded_method


def _generator(behaviour: Behaviour) -> Behaviour:
    """For a method that yields its answers."""

    async def guarded_method(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            if type(request) is UndecodableMessage:
                raise request
            async with aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer
        except UndecodableMessage as error:
            async with answering(context):
                raise error

    return guarded_method
