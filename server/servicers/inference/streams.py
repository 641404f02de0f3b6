"""Streams of requests: many at once, never more than the caller takes answers for.

    requests ──> at most MAX_IN_FLIGHT tasks ──> answers, in order or as they come ──> caller

A place is free again when its answer has been taken, so a caller that does not read is not read
from either: its requests wait in the flow control of its own connection. The same goes for bytes:
nothing is read while the stream holds as much memory as it may
(``braid.server.inference.call_memory``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from braid.server.inference.call_memory import StreamMemory
from braid.server.servicers.inference.infer import Answer

MAX_IN_FLIGHT = 64
"""Requests of one stream that are worked on, or whose answers wait to be taken."""

Request = TypeVar("Request")


async def answers(
    requests: AsyncIterator[Request],
    answer: Callable[[Request], Awaitable[Answer]],
    memory: StreamMemory,
    *,
    in_order: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield one answer for each request; leaving the iteration cancels what is under way.

    Args:
        requests: the stream.
        answer: must not raise: an error is an answer, too.
        memory: that ``answer`` charges.
        in_order: of the requests; else each answer as soon as it is there.
    """
    places = asyncio.Semaphore(MAX_IN_FLIGHT)
    ready: asyncio.Queue[asyncio.Future[Answer] | None] = asyncio.Queue()
    running: set[asyncio.Future[Answer]] = set()

    async def read() -> None:
        try:
            async for request in requests:
                await places.acquire()
                task = asyncio.ensure_future(answer(request))
                del request
                running.add(task)
                task.add_done_callback(running.discard)
                if in_order:
                    ready.put_nowait(task)
                else:
                    task.add_done_callback(ready.put_nowait)
                await asyncio.sleep(0)  # it asks for memory before another request is read
                await memory.wait_for_room()
            if running:
                await asyncio.wait(running)
                await asyncio.sleep(0)  # their callbacks run before the end is told
        finally:
            ready.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (task := await ready.get()) is not None:
            given = await task
            yield given.reply
            given.release()
            del given, task  # both hold the answer, and the next one may take long
            places.release()
        await reader
    finally:
        reader.cancel()
        for task in list(running):
            task.cancel()
        memory.close()
