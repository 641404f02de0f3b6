"""Streams of requests: many at once, never more than the caller takes answers for.

A place is free again when its answer has been taken, so a caller that does not read is not read
from either: its requests wait in the flow control of its own connection. The same goes for bytes:
nothing is read while the stream holds as much memory as it may
(``braid.server.inference.call_memory``).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from braid.server.inference.call_memory import Answer, LaterReply, StreamMemory

MAX_IN_FLIGHT = 64
"""Requests of one stream that are computed, or whose answers wait to be taken."""


class _Answering:
    """Requests of one stream that have been read, and the answers to these requests."""

    def __init__(
        self, answer: Callable[[Any], Awaitable[Answer]], memory: StreamMemory, in_order: bool
    ) -> None:
        self.places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.ready: asyncio.Queue[asyncio.Future[Answer] | None] = asyncio.Queue()
        self.running: set[asyncio.Future[Answer]] = set()
        self._answer = answer
        self._memory = memory
        self._in_order = in_order

    async def read(self, requests: AsyncIterator[Any]) -> None:
        """Read the stream as far as there is room; ``ready`` ends with None."""
        try:
            async for request in requests:
                await self.places.acquire()
                self._begin(request)
                del request
                await asyncio.sleep(0)  # it asks for memory before another request is read
                await self._memory.wait_for_room()
            if self.running:
                await asyncio.wait(self.running)
                await asyncio.sleep(0)  # their callbacks run before the end is told
        finally:
            self.ready.put_nowait(None)

    def _begin(self, request: Any) -> None:
        task = asyncio.ensure_future(self._answer(request))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        if self._in_order:
            self.ready.put_nowait(task)
        else:
            task.add_done_callback(self.ready.put_nowait)


async def answers(
    requests: AsyncIterator[Any],
    answer: Callable[[Any], Awaitable[Answer]],
    memory: StreamMemory,
    *,
    in_order: bool,
) -> AsyncGenerator[bytes | LaterReply, None]:
    """Yield one reply for each request; leaving the iteration cancels the requests under way.

    ``answer``, which charges ``memory``, must not raise: an error is an answer, too. Without
    ``in_order`` replies come as soon as they are ready.
    """
    work = _Answering(answer, memory, in_order)
    reader = asyncio.create_task(work.read(requests))
    try:
        while (task := await work.ready.get()) is not None:
            given = await task
            yield given.reply
            given.release()
            del given, task  # both hold the answer, and the next one may take long
            work.places.release()
        await reader
    finally:
        reader.cancel()
        for task in list(work.running):
            task.cancel()
        memory.close()
