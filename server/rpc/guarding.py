"""Guards between gRPC and every servicer: bad messages, callers that have left, unread answers.

gRPC decodes a message before a servicer sees it, and answers what it cannot decode with UNKNOWN and
a traceback in the log. So every handler is replaced by one whose decoding never fails: a bad
message is refused instead of handled; in a stream, the iteration over its messages raises.

gRPC's own server, which Ray Serve runs (``braid.server.ray``), notices twice that a caller has
left: its write fails, and the handler is cancelled. If the failure comes first, gRPC raises
``ExecuteBatchError``: in ``context.write``, where the guard turns it into the cancellation, or
while it sends the single answer that a handler has returned, where the error reaches gRPC's own
log only (``filter_grpc_log``).

Methods that carry tensors charge their own answers (``braid.server.servicers.tensor_service``);
others' are charged here where they are large, to the memory of their connection
(``braid.server.inference.call_memory``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from braid.core.errors import InvalidRequest, UndecodableMessage
from braid.server.http2.calls import behaviour_of
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.logs import Seldom
from braid.server.rpc.status import Behaviour, Handler, answering, with_behaviour
from braid.server.rpc.wire_parts import Decode, counted

log = logging.getLogger("braid.rpc")

LOG_SECONDS = 60.0
"""Pause between two log lines about the messages of one method."""

SMALL_BYTES = 16 << 10
"""Answers up to this size are not counted: as many as a connection may have calls are little."""

GRPC_LOG = "grpc._cython.cygrpc"

_BATCH_FAILED = 'Failed "execute_batch"'
"""Beginning of the message if operations failed; errors of misuse begin otherwise."""

Details = grpc.HandlerCallDetails


class Guarding(grpc.aio.ServerInterceptor):
    """Guard of one server's methods; comes after all that refuses calls unread."""

    def __init__(self, memory: CallMemory) -> None:
        self._memory = memory
        self._guarded: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler | None]], details: Details
    ) -> Handler | None:
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        both = self._guarded.get(details.method)
        if both is None or both[0] is not handler:
            guard = guarded(handler, details.method, self._memory)
            both = self._guarded[details.method] = handler, guard
        return both[1]


def guarded(handler: Handler, method: str, memory: CallMemory) -> Handler:
    """Return a copy of a handler whose messages, writes and answers are guarded."""
    assert handler.request_deserializer is not None
    behaviour = behaviour_of(handler)
    if handler.unary_unary is not None and handler.response_serializer is not None:
        behaviour = _charging(behaviour, memory)
    if inspect.isasyncgenfunction(behaviour):
        behaviour = _writing(behaviour)
    if handler.request_streaming:
        behaviour = _reading(behaviour)
    read = _reader(handler.request_deserializer, method, handler.request_streaming)
    return with_behaviour(handler, _refusing(behaviour), read)


def _reader(decode: Decode[Any], method: str, is_stream: bool) -> Decode[Any]:
    """Return ``decode``, but with failures returned as InvalidRequest, raised in a stream."""
    seldom = Seldom(LOG_SECONDS)
    if (message := getattr(getattr(decode, "__self__", None), "DESCRIPTOR", None)) is not None:
        decode = counted(decode, message)  # ``FromString`` of a message; others count themselves

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except InvalidRequest as error:
            if is_stream:
                raise
            return error.with_traceback(None)  # its frames have the message
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


def _charging(behaviour: Behaviour, memory: CallMemory) -> Behaviour:
    """Charge each answer with the size of the method's largest so far, if over SMALL_BYTES."""
    largest_bytes = 0

    async def method(request: Any, context: Any) -> Any:
        nonlocal largest_bytes
        account, charge = memory.connection(context.peer()), None
        if largest_bytes > SMALL_BYTES:
            charge = await account.take(largest_bytes, None)
            charge.release_when_done(context)
        answer = await behaviour(request, context)
        size_bytes = answer.ByteSize()
        largest_bytes = max(largest_bytes, size_bytes)
        if charge is None and size_bytes > SMALL_BYTES:
            charge = account.charge(size_bytes)
            charge.release_when_done(context)
        if charge is not None:
            charge.answered(size_bytes)
        return answer

    return method


def _writing(behaviour: Behaviour) -> Behaviour:
    """Write the answers that a method yields, and keep none."""

    async def method(request: Any, context: Any) -> None:
        async with aclosing(behaviour(request, context)) as answers:
            async for answer in answers:
                await context.write(answer)
                del answer

    return method


def _reading(behaviour: Behaviour) -> Behaviour:
    """Pass on the messages of a stream and keep none; gRPC itself keeps the last one."""

    async def messages(context: Any) -> AsyncIterator[Any]:
        while (message := await context.read()) is not grpc.aio.EOF:
            yield message
            del message

    async def method(_: Any, context: Any) -> Any:
        return await behaviour(messages(context), context)

    return method


def _refusing(behaviour: Behaviour) -> Behaviour:
    """End a method with the status of a bad message; silently if its caller has left."""

    async def method(request: Any, context: Any) -> Any:
        try:
            if isinstance(request, InvalidRequest):
                raise request
            return await behaviour(request, context)
        except InvalidRequest as error:
            async with answering(context):
                raise error
        except grpc.aio.InternalError as error:
            if has_left(error):
                raise asyncio.CancelledError from None
            raise

    return method


def has_left(error: BaseException | None) -> bool:
    """True if gRPC could not write an answer, as its caller has left."""
    return isinstance(error, grpc.aio.InternalError) and str(error).startswith(_BATCH_FAILED)


class _Departures(logging.Filter):
    """Filter that turns gRPC's error about a caller that has left into a line for debugging."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info is None or not has_left(record.exc_info[1]):
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = "the caller left before its answer was sent", ()
        record.exc_info = record.exc_text = None
        return logging.getLogger(GRPC_LOG).isEnabledFor(logging.DEBUG)


_DEPARTURES = _Departures()


def filter_grpc_log() -> None:
    """Filter gRPC's log for callers that have left. May be called twice."""
    logging.getLogger(GRPC_LOG).addFilter(_DEPARTURES)
