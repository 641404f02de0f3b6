"""Messages that mean harm: memory and time of the server follow what was sent, not what it says."""

import asyncio
import gzip
import zlib

import pytest

from braid.server.http2.messages import (
    MAX_READY,
    WINDOW_BYTES,
    BadMessage,
    Compressed,
    Incoming,
    TooLarge,
)

LIMIT = 1 << 20


def prefixed(message: bytes, compressed: int = 0, length: int | None = None) -> memoryview:
    size = len(message) if length is None else length
    return memoryview(bytes([compressed]) + size.to_bytes(4, "big") + message)


def incoming(*parts: memoryview, encoding: str = "gzip") -> Incoming:
    made = Incoming(LIMIT, encoding)
    for each in parts:
        made.feed(each)
    return made


async def read(held: Incoming) -> bytes | memoryview | None:
    """The next message; None: there are no more."""
    if not await held.arrived():
        return None
    size_bytes = await held.measure()
    message = await held.take()
    assert len(message) == size_bytes
    return message


async def test_compressed_messages_are_held_as_they_came() -> None:
    bomb = gzip.compress(bytes(LIMIT))
    held = incoming(*[prefixed(bomb, 1)] * 100)
    unread = [each for each in held.ready if isinstance(each, Compressed)]
    assert sum(len(each.data) for each in unread) == 100 * len(bomb)
    assert await read(held) == bytes(LIMIT)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, LIMIT])
async def test_a_compressed_message_of_any_size_is_read(size: int) -> None:
    assert await read(incoming(prefixed(gzip.compress(bytes(size)), 1))) == bytes(size)


@pytest.mark.parametrize("size", [LIMIT + 1, 100 * LIMIT])
async def test_what_is_too_large_is_not_decompressed(size: int) -> None:
    with pytest.raises(TooLarge):
        await read(incoming(prefixed(gzip.compress(bytes(size)), 1)))


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(b"abc")[:-1], gzip.compress(b"abc") + b"more"],
    ids=["empty", "other", "cut off", "longer"],
)
async def test_damaged_compression_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        await read(incoming(prefixed(data, 1)))


async def test_damage_behind_the_first_part_is_refused() -> None:
    data = bytearray(zlib.compress(bytes(range(256)) * 1000, 0))
    data[-1] ^= 1  # of the check sum
    with pytest.raises(BadMessage):
        await read(incoming(prefixed(bytes(data), 1), encoding="deflate"))


async def test_a_length_of_4_gib_takes_no_memory() -> None:
    held = incoming(prefixed(b"", length=2**32 - 1))
    assert held.place() is None
    with pytest.raises(TooLarge):
        await read(held)


async def test_nothing_ready_means_nothing_unread() -> None:
    """A window given while small messages waited unparsed let them pile up without an end."""
    count = 3 * MAX_READY
    held = incoming(memoryview(bytes(5 * count)))
    held.feed(prefixed(bytes(100), length=WINDOW_BYTES * 2 // 3))  # one that goes on
    for left in range(count - 1, -1, -1):
        assert await read(held) == b""
        assert bool(held.ready) == bool(left)
    assert held.missing_bytes == WINDOW_BYTES * 2 // 3 - 100  # the window is given for it


async def test_an_ended_call_holds_nothing() -> None:
    held = incoming(*[prefixed(b"abc")] * (MAX_READY + 5), prefixed(b"", length=LIMIT))
    held.drop()
    held.feed(prefixed(b"abc"))
    assert (list(held.ready), held.missing_bytes, held.place()) == ([], 0, None)


async def test_a_waiting_reader_hears_the_end() -> None:
    held = incoming()
    reading = asyncio.ensure_future(read(held))
    await asyncio.sleep(0)
    held.end()
    assert await reading is None
