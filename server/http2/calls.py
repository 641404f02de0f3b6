"""One call of gRPC: found, run and answered, with what its handler asks of it.

The handler, a coroutine that writes the answers of a stream itself, runs in a task of its own. That
is cancelled when the caller leaves or the deadline passes. Done callbacks are called when the last
byte of the answer is on its way, or never will be.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from traceback import clear_frames
from typing import Any

import grpc

from braid.server.http2.answer_headers import BEGIN, Metadata, write_end
from braid.server.http2.connection import HttpConnection
from braid.server.http2.messages import BadMessage, NoRoom, TooLarge
from braid.server.http2.streams import HttpStream

log = logging.getLogger("braid.rpc")

Code = grpc.StatusCode
HandlerOf = Callable[[Any], Awaitable[Any]]


class Call:
    """Context of one call: of ``grpc.aio.ServicerContext`` what handlers here ask."""

    def __init__(
        self,
        handler_of: HandlerOf,
        under_way: set[Call],
        connection: HttpConnection,
        stream: HttpStream,
    ) -> None:
        """``handler_of`` has all interceptors in it. The call is in ``under_way`` until it ends."""
        self._handler_of = handler_of
        self._under_way = under_way
        self._connection = connection
        self._stream = stream
        self._handler: Any = None
        self._callbacks: list[Callable[[Any], object]] = []
        self._trailing: Metadata = ()
        self._has_begun = self._has_status = False
        self._abort: grpc.aio.AbortError | None = None
        self._deadline: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._is_late = stream.head.timeout_s == 0
        self._is_running = False
        loop = asyncio.get_running_loop()
        if stream.head.timeout_s is not None:
            self._deadline = stream.began_at + stream.head.timeout_s
            self._alarm = loop.call_later(self._deadline - time.monotonic(), self._expire)
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._close)
        under_way.add(self)

    # -- what a handler asks --------------------------------------------------------------------

    def peer(self) -> str:
        return self._connection.peer

    def invocation_metadata(self) -> Metadata:
        return self._stream.head.invocation_metadata

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing = tuple(metadata)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        if self._abort is not None:
            raise grpc.aio.UsageError("Abort already called!")
        self._abort = grpc.aio.AbortError("Locally aborted.")
        self._trailing = tuple(trailing_metadata) or self._trailing
        await self._finish(code, details)
        raise self._abort

    async def read(self) -> Any:
        """Return the next message; ``grpc.aio.EOF`` after the last one.

        Who may call a method that is not open to strangers is no stranger.
        """
        if not (self._stream.is_open or self._connection.memory.caller.is_known):
            self._connection.know(self._stream.head)
        try:
            message = await self._connection.flow.next(self._stream)
        except (TooLarge, BadMessage, NoRoom) as failure:
            code = Code.INTERNAL if isinstance(failure, BadMessage) else Code.RESOURCE_EXHAUSTED
            await self.abort(code, str(failure))
        if message is None:
            return grpc.aio.EOF
        decode = self._handler.request_deserializer
        return message if decode is None else decode(message)

    async def write(self, message: Any) -> None:
        """Send one message of the answer; returns when its last byte is on its way."""
        if self._abort is not None:
            raise self._abort
        data = self._encoded(message)
        begin = b"" if self._has_begun else BEGIN
        self._has_begun = True
        await self._connection.sender.send(self._stream.outgoing, begin, data, b"")

    # -- running --------------------------------------------------------------------------------

    def cancel(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        self._is_running = True
        try:
            if self._is_late:
                await self._finish(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
            else:
                await self._answer()
        except grpc.aio.AbortError as error:
            _clear_frames(error)
        except asyncio.CancelledError:
            if self._is_late and not self._has_status:
                await self._finish(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        except Exception as error:
            log.error("internal error", exc_info=error)
            _clear_frames(error)
            if not self._has_status:
                self._trailing = ()  # which may be the reason
                await self._finish(Code.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def _close(self, _: asyncio.Task[None]) -> None:
        """Tell who waits for the end of the call, also of one that never began."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._connection.ended(self._stream)
        self._under_way.discard(self)
        for callback in self._callbacks:
            callback(self)
        self._callbacks = []

    async def _answer(self) -> None:
        self._handler = handler = await self._handler_of(self._stream.head)
        if handler is None:
            await self._finish(Code.UNIMPLEMENTED, "Method not found!")
            return
        behaviour = behaviour_of(handler)
        if handler.request_streaming:
            request: Any = self._messages()
        else:
            request = await self.read()
            if request is grpc.aio.EOF:
                await self._finish(Code.INTERNAL, "the call ended before its message")
                return
            self._connection.flow.close(self._stream)
        answering = behaviour(request, self)
        del request  # it may be large
        answer = await answering
        del answering
        self._connection.flow.free(self._stream)
        if self._abort is not None:
            raise self._abort
        message = None if handler.response_streaming else self._encoded(answer)
        await self._finish(Code.OK, "", message)

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def _finish(self, code: Any, details: str, message: bytes | None = None) -> None:
        """Send the status, after the only message of an answer if there is one."""
        number = 0 if code is Code.OK else code.value[0] if isinstance(code, Code) else int(code)
        end = write_end(number, details, self._trailing)
        begin = b"" if self._has_begun else BEGIN
        self._has_begun = self._has_status = True
        await self._connection.sender.send(self._stream.outgoing, begin, message, end)
        self._connection.streams.answered(self._stream)

    def _encoded(self, message: Any) -> bytes:
        encode = self._handler.response_serializer
        data: bytes = message if encode is None else encode(message)
        return data

    def _expire(self) -> None:
        self._is_late = True
        if self._is_running:  # a task that is cancelled before it runs would send no status
            self._task.cancel()


def behaviour_of(handler: Any) -> Any:
    """Return the function of a handler, whatever its arity."""
    return (
        handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
    )


def _clear_frames(error: BaseException) -> None:
    """Clear the variables in the frames of an error and of those that it came from.

    They have the call's message, and lead back to the error (the call has it, or one of them): a
    cycle, which would keep the message until a collection of garbage.
    """
    part: BaseException | None = error
    while part is not None:
        clear_frames(part.__traceback__)
        part = part.__cause__ or part.__context__
