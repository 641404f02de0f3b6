import asyncio
import struct
from dataclasses import replace

import pytest

from braid.server.http2 import frames
from braid.server.http2.answer_headers import literal
from braid.server.http2.floods import (
    BUDGET_FRAMES,
    FRAMES_PER_ANSWER,
    FRAMES_PER_SECOND,
    FrameBudget,
)
from braid.server.http2.frames import ConnectionFault, ErrorCode, frame, number_frame
from braid.server.http2.messages import WINDOW_BYTES
from braid.server.http2.sending import Sender
from braid.server.inference.call_memory import MemoryLimits
from tests.server.http2.kinds_of_port import on_each_kind_of_port
from tests.server.http2.test_frames import CALL, LIMITS, MESSAGE, Peer, connected, data, headers

__all__ = ["on_each_kind_of_port"]

PING = frame(frames.PING, 0, 0, bytes(8))
HOLD = CALL.replace(b"\x07/t/Echo", b"\x07/t/Hold")
LARGE = b"\x40" + literal(b"a", b"v" * 3900)[1:]  # a field that the table keeps
MIB = 1 << 20
SIZE = 3 * MIB
LONG = replace(LIMITS, message_bytes=SIZE, keepalive_s=20.0, answer_s=20.0)
ROOM_FOR_ONE = MemoryLimits(SIZE, SIZE, SIZE)


async def flood(peer: Peer, useless: bytes) -> ErrorCode:
    """Send a frame again and again, as fast as the server reads; returns why it had enough."""
    peer.send(useless * 2 * BUDGET_FRAMES)
    return await peer.fault()


@pytest.mark.parametrize(
    "useless",
    [
        PING,
        frame(frames.PING, frames.ACK, 0, bytes(8)),
        frame(frames.SETTINGS, frames.ACK, 0),
        frames.settings_frame({frames.INITIAL_WINDOW_SIZE: MIB}),
        frame(frames.PRIORITY, 0, 1, bytes(5)),
        frame(0xBE, 0, 0, b"grease"),
        number_frame(frames.WINDOW_UPDATE, 0, 1),
        data(1, b"", 0),
        data(1, b"\0", frames.PADDED),
        number_frame(frames.RST_STREAM, 1, 8),
    ],
    ids=[
        *("ping", "pong", "settings", "new settings", "priority", "unknown", "window", "empty"),
        *("padding", "reset"),
    ],
)
async def test_a_flood_of_frames_without_use_ends_the_connection(useless: bytes) -> None:
    async with connected(limits=LONG) as peer:
        peer.send(headers(1, HOLD))
        assert await flood(peer, useless) is ErrorCode.ENHANCE_YOUR_CALM


async def test_calls_that_are_reset_at_once_end_the_connection() -> None:
    async with connected(limits=LONG) as peer:
        numbers = range(1, 4 * BUDGET_FRAMES, 2)
        ends = (number_frame(frames.RST_STREAM, number, 8) for number in numbers)
        begins = (headers(number, HOLD) for number in numbers)
        peer.send(*(begin + end for begin, end in zip(begins, ends, strict=True)))
        assert await peer.fault() is ErrorCode.ENHANCE_YOUR_CALM


def metadata(number: int, fields: int, size: int) -> bytes:
    """Headers of a call that were not read before."""
    values = (str(number * 1000 + index).encode().ljust(size, b"v") for index in range(fields))
    return CALL.replace(b"/t/Echo", b"/t/Nope") + b"".join(literal(b"k", value) for value in values)


def in_code(eights: int) -> bytes:
    """Field of so many times eight letters "a" in Huffman's code, five bits each."""
    value = bytes.fromhex("18c6318c63") * eights
    plain = literal(b"k", value)
    return plain[:3] + bytes([plain[3] | 0x80]) + plain[4:]


@pytest.mark.parametrize(
    "more",
    [literal(b"k", b"v") * 400, in_code(1500), literal(b"k", b"v" * 20_000), LARGE + b"\xbe" * 15],
    ids=["many fields", "in Huffman's code", "too long", "references"],
)
async def test_a_flood_of_headers_ends_the_connection(more: bytes) -> None:
    """They cost their sender nothing beside other frames, and milliseconds to read."""
    async with connected(limits=LONG) as peer:
        flags = frames.END_HEADERS | frames.END_STREAM
        for number in range(1, 20 * BUDGET_FRAMES, 2):
            peer.send(headers(number, metadata(number, 1, 9) + more, flags))
            if number % 400 == 1:
                await asyncio.sleep(0)
            if peer.writer.is_closing():
                break
        assert await peer.fault() is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(("fields", "size"), [(25, 20), (2, 1000), (4, 2000)])
async def test_calls_with_much_metadata_may_go_on(fields: int, size: int) -> None:
    async with connected(limits=LONG) as peer:
        for number in range(1, 2 * BUDGET_FRAMES, 2):
            peer.send(headers(number, metadata(number, fields, size)), data(number, MESSAGE))
            flags = 0
            while not flags & frames.END_STREAM:
                flags, of, _ = await peer.until(frames.HEADERS)
                assert of == number


@pytest.mark.parametrize("payload", [b"", b"\x82", literal(b"a", bytes(1000))])
async def test_endless_headers_are_cut_short(payload: bytes) -> None:
    async with connected() as peer:
        peer.send(headers(1, b"", 0), frame(frames.CONTINUATION, 0, 1, payload) * 70)
        assert await peer.fault() is ErrorCode.ENHANCE_YOUR_CALM


async def test_headers_in_some_small_frames_are_read() -> None:
    pieces = [CALL[at : at + 2] for at in range(0, len(CALL), 2)]
    last = frame(frames.CONTINUATION, frames.END_HEADERS, 1)
    async with connected() as peer:
        peer.send(headers(1, b"", 0), *(frame(frames.CONTINUATION, 0, 1, each) for each in pieces))
        peer.send(last, data(1, MESSAGE))
        assert await peer.answer(1) == MESSAGE


async def test_a_short_block_of_endless_fields_is_not_read_to_its_end() -> None:
    """Each byte names a field of 4 KiB that the table holds."""
    async with connected() as peer:
        peer.send(headers(1, CALL + LARGE), headers(3, CALL + b"\xbe" * 16_000))
        assert await peer.fault() is ErrorCode.ENHANCE_YOUR_CALM


async def test_answers_earn_the_pings_and_windows_that_come_with_them() -> None:
    growth = number_frame(frames.WINDOW_UPDATE, 0, 1)
    async with connected(limits=LONG) as peer:
        for number in range(1, BUDGET_FRAMES, 2):
            peer.send(headers(number), data(number, MESSAGE), PING, growth, growth)
            assert await peer.answer(number) == MESSAGE


async def test_frames_that_follow_the_refusals_of_many_calls_may_come_at_once() -> None:
    last = BUDGET_FRAMES + 1
    calls = range(1, last, 2)
    unknown = CALL.replace(b"\x07/t/Echo", b"\x07/t/Nope")
    async with connected(limits=replace(LONG, streams=len(calls))) as peer:
        peer.send(*(headers(number, unknown) + data(number, MESSAGE) for number in calls))
        for _ in calls:
            await peer.until(frames.HEADERS)
        growth = number_frame(frames.WINDOW_UPDATE, 0, 1)
        peer.send(growth * 3 * len(calls), headers(last), data(last, MESSAGE))
        assert await peer.answer(last) == MESSAGE


async def test_window_updates_of_many_calls_may_come_before_the_first_answer() -> None:
    last = 2 * BUDGET_FRAMES + 1
    calls = range(1, last, 2)
    async with connected(limits=replace(LONG, streams=len(calls) + 1)) as peer:
        for number in calls:
            growth = number_frame(frames.WINDOW_UPDATE, number, 1)
            peer.send(headers(number, HOLD) + growth * 2)
        peer.send(headers(last), data(last, MESSAGE))
        assert await peer.answer(last) == MESSAGE


def test_time_earns_a_few_frames() -> None:
    now = 0.0
    budget = FrameBudget(Sender(), 1, lambda: now)
    for _ in range(BUDGET_FRAMES + FRAMES_PER_ANSWER):
        budget.spend()
    now = 0.5
    for _ in range(FRAMES_PER_SECOND // 2):
        budget.spend()
    with pytest.raises(ConnectionFault, match="without use"):
        budget.spend()


async def test_an_unknown_compression_is_unimplemented_and_the_known_ones_are_named() -> None:
    async with connected() as peer:
        peer.send(headers(1, CALL + literal(b"grpc-encoding", b"br")), data(1, MESSAGE))
        flags, number, block = await peer.until(frames.HEADERS)
        assert (flags, number) == (frames.END_HEADERS | frames.END_STREAM, 1)
        assert literal(b"grpc-status", b"12") in block
        assert literal(b"grpc-accept-encoding", b"identity,deflate,gzip") in block
        peer.send(headers(3), data(3, MESSAGE))
        assert await peer.answer(3) == MESSAGE


def begin(number: int) -> bytes:
    """A call and as much of its message as the first window takes, with the prefix."""
    message = struct.pack("!BI", 0, SIZE) + bytes(WINDOW_BYTES - 5)
    pieces = (message[at : at + 16_000] for at in range(0, len(message), 16_000))
    return b"".join([headers(number), *(data(number, each, 0) for each in pieces)])


def rest(number: int) -> bytes:
    left = SIZE + 5 - WINDOW_BYTES
    sizes = [16_000] * (left // 16_000) + [left % 16_000]
    return b"".join([*(data(number, bytes(each), 0) for each in sizes), data(number, b"")])


async def growth(peer: Peer) -> int:
    """Number of the next stream whose window grows."""
    while True:
        _, number, _ = await peer.until(frames.WINDOW_UPDATE)
        if number:
            return number


async def test_messages_on_their_way_in_wait_for_memory() -> None:
    """A connection has one message beyond the windows of its streams, then the next."""
    start = frames.PREFACE + frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 2**31 - 1})
    start += number_frame(frames.WINDOW_UPDATE, 0, 2**30)
    async with connected(start, LONG, ROOM_FOR_ONE) as peer:
        peer.send(begin(1), begin(3), PING)
        assert await growth(peer) == 1
        await peer.until(frames.PING)  # so both have come
        peer.send(rest(1))
        while await growth(peer) != 3:  # once the handler has the first one
            pass
        assert len(await peer.answer(1)) == SIZE + 5
        peer.send(rest(3))
        assert len(await peer.answer(3)) == SIZE + 5


async def test_a_call_that_is_given_up_leaves_its_memory_to_the_next() -> None:
    async with connected(limits=LONG, memory=ROOM_FOR_ONE) as peer:
        peer.send(begin(1), begin(3))
        assert await growth(peer) == 1
        peer.send(number_frame(frames.RST_STREAM, 1, 8))
        assert await growth(peer) == 3
