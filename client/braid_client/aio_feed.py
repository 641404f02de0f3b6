"""Calls of grpc.aio whose requests are streamed, and the reasons of their failures.

    source of requests ──> Feed ──> grpc.aio ──> call ──fails──> Feed.reason: what to raise

grpc.aio loses the reason in two ways, which are made good here. If the source raises, it cancels
the call and forgets the exception. If the server ends the call while a request is being sent, it
may overwrite the server's status by an INTERNAL of its own (grpc issue 36066).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio

from braid_client.errors import STREAM_CUT, BraidError, Unavailable

S = TypeVar("S")
T = TypeVar("T")

OVERWRITTEN = "Internal error from Core"
"""Details of the status that grpc.aio makes up."""

PATIENCE_S = 1.0
"""Seconds that the server's status may take to arrive after a request could not be sent."""


class Feed(AsyncIterator[T]):
    """Iterator from which grpc.aio reads the requests of one call.

    Args:
        source: what the requests are made of.
        write: makes a request of an item; for one item after the other.
    """

    def __init__(self, source: AsyncIterator[S], write: Callable[[S], T]) -> None:
        self._source = source
        self._write = write
        self._failure: Exception | None = None
        self.unanswered = 1  # requests, and one for those to come
        self._status: asyncio.Future[grpc.RpcError] = asyncio.get_running_loop().create_future()

    async def __anext__(self) -> T:
        try:
            item = self._write(await anext(self._source))
            self.unanswered += 1
            return item
        except StopAsyncIteration:
            self.unanswered -= 1
            raise
        except Exception as failure:
            self._failure = failure
            raise

    def feeds(self, call: Any) -> None:
        """Set the call that reads from this feed."""
        call.add_done_callback(self._note_status)

    def _note_status(self, call: Any) -> None:
        """Keep the status that grpc.aio sets if the server sent it."""
        details = _at_once(call.details())
        if details != OVERWRITTEN and not self._status.done():
            code, trailing = _at_once(call.code()), _at_once(call.trailing_metadata())
            status = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)
            self._status.set_result(status)

    async def reason(
        self,
        failure: grpc.RpcError | asyncio.CancelledError,
        error: Callable[[grpc.RpcError], BraidError],
    ) -> BaseException:
        """Return what to raise for a call that failed; ``error`` translates a status."""
        if self._failure is not None:
            return self._failure
        if isinstance(failure, asyncio.CancelledError):
            return failure
        if failure.details() == OVERWRITTEN:
            with suppress(TimeoutError):
                failure = await asyncio.wait_for(self._status, PATIENCE_S)
        if failure.code() is grpc.StatusCode.OK:  # while requests were still being sent
            return Unavailable(STREAM_CUT)
        return error(failure)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine of a call that has ended, without waiting."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise AssertionError("the status of a call that has ended is known")


def as_async(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Iterate over an iterable of either kind, sync or async."""
    return aiter(items) if isinstance(items, AsyncIterable) else _async(items)


async def _async(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


async def in_threads(source: Iterator[T]) -> AsyncIterator[T]:
    """Iterate in threads over what blocks on the disk; the event loop goes on."""
    while (item := await asyncio.to_thread(next, source, None)) is not None:
        yield item
