"""Long work in pieces, between which an event loop serves whoever else waits for it.

A piece takes a few milliseconds at most. Work that ends with its first piece waits for nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from contextlib import nullcontext
from io import BytesIO
from typing import TypeVar

T = TypeVar("T")

Work = Generator[None, None, T]
"""Yields between two pieces, and returns a result."""

PIECE_BYTES = 4 << 20
"""Bytes that are copied or decoded as one piece: one or two milliseconds."""


def finished(work: Work[T]) -> T:
    """Return the result of work, done at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_steps(work: Work[T]) -> T:
    """Return the result of work that waits for no other work: for what holds others up."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


class Turns:
    """Turns of the pieces of all work, in the order in which they are ready.

    So a hundred callers with long work slow down each other, and everybody else by one piece.
    Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def finish(self, work: Work[T], among: asyncio.Semaphore | None = None) -> T:
        """Return the result of work, of which the first piece is done at once.

        ``among``: entered for the further pieces, by work that takes much memory.
        """
        try:
            next(work)
            async with among or nullcontext():
                while True:
                    async with self._turn:
                        await asyncio.sleep(0)
                        next(work)
        except StopIteration as end:
            result: T = end.value
            return result

    async def each(self, pieces: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items; making one is a piece of work, done in a turn of its own."""
        making = iter(pieces)
        while True:
            async with self._turn:
                await asyncio.sleep(0)
                try:
                    piece = next(making)
                except StopIteration:
                    return
            yield piece


def joined(parts: Sequence[bytes | memoryview]) -> Work[bytes]:
    size = sum(map(len, parts))
    if size <= PIECE_BYTES:
        return b"".join(parts)
    whole, copied = BytesIO(bytes(size)), 0  # pages that nothing was written to take no time
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), PIECE_BYTES):
            copied += whole.write(view[at : at + PIECE_BYTES])
            if copied >= PIECE_BYTES:
                copied = 0
                yield
    return whole.getvalue()  # not copied once more
