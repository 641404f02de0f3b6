"""Streams of requests, and coroutines that wait for nothing.

source of requests ──> Feed ──> grpc or grpc.aio ──> call
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Feed(Generic[T]):
    """Iterator of either kind for gRPC to read the requests of one call from.

    gRPC forgets what its source raises, or reports "Exception iterating requests!". Here the call
    is cancelled and the client raises ``failure`` instead.
    """

    _source: AsyncIterator[T]
    failure: Exception | None = None
    unanswered: int = 1  # requests, and one for those to come
    _cancel: Callable[[], object] = lambda: None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            item = await anext(self._source)
            self.unanswered += 1
            return item
        except StopAsyncIteration:
            self.unanswered -= 1
            raise
        except Exception as failure:
            self.failure = failure
            self._cancel()
            raise StopAsyncIteration from None

    def __next__(self) -> T:
        try:
            return at_once(anext(self))
        except StopAsyncIteration:
            raise StopIteration from None

    def feeds(self, cancel: Callable[[], object]) -> None:
        """Set what cancels the call that reads from this feed; gRPC may have begun to read."""
        self._cancel = cancel
        if self.failure is not None:
            cancel()


async def as_async(items: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """Iterate over an iterable of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def pulled(
    source: Iterator[T], in_thread: Callable[..., Awaitable[Any]]
) -> AsyncGenerator[T, None]:
    """Iterate by way of ``in_thread`` over what waits for the disk."""
    while (item := await in_thread(next, source, None)) is not None:
        yield item


def at_once(work: Awaitable[T]) -> T:
    """Return the result of a coroutine that has nothing to wait for."""
    steps: Any = work
    try:
        steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    steps.close()
    raise AssertionError("a coroutine waits that should have an answer at once")


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate over what has nothing to wait for; close it at the end."""
    try:
        while True:
            yield at_once(anext(items))
    except StopAsyncIteration:
        return
    finally:
        at_once(items.aclose())
