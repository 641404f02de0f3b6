"""Frames as no library would send them: the server ends the connection, or goes on as it should."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import unittest.mock
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from braid.server.http2 import connection, frames, streams
from braid.server.http2.accepting import Connections
from braid.server.http2.answer_headers import literal
from braid.server.http2.arrivals import Arrivals
from braid.server.http2.frames import ErrorCode, frame, number_frame, settings_frame
from braid.server.http2.hpack import Decoder
from braid.server.http2.request_headers import read_head
from braid.server.http2.sending import Outgoing, Sender
from braid.server.http2.server import Server
from braid.server.http2.streams import ConnectionLimits
from braid.server.inference.call_memory import CallMemory, MemoryLimits
from braid.server.observability.logs import Seldom
from tests.server.http2.kinds_of_port import add_port, client_tls, on_each_kind_of_port

__all__ = ["on_each_kind_of_port"]

MEMORY = MemoryLimits(16 << 20, 16 << 20, 64 << 20)
LIMITS = ConnectionLimits(message_bytes=1 << 20, streams=4, keepalive_s=60.0, answer_s=60.0)
START = frames.PREFACE + settings_frame({})
KIND = b"application/grpc"
CALL = b"".join(
    literal(name, value)
    for name, value in [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t/Echo"),
        (b"content-type", KIND),
        (b"te", b"trailers"),
    ]
)
MESSAGE = b"\0\0\0\0\x03abc"
END = frames.END_HEADERS | frames.END_STREAM


async def echo(request: bytes, _: Any) -> bytes:
    return bytes(request)


async def hold(_: bytes, __: Any) -> bytes:
    await asyncio.sleep(60)
    return b""


async def pour(_: bytes, context: Any) -> None:
    while True:
        await context.write(bytes(1 << 16))


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def frame(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and payload of the next frame; raises at the end."""
        head = await self.reader.readexactly(frames.HEAD_BYTES)
        length_and_kind, flags, number = struct.unpack("!IBI", head)
        payload = await self.reader.readexactly(length_and_kind >> 8)
        return length_and_kind & 0xFF, flags, number, payload

    async def until(self, kind: int) -> tuple[int, int, bytes]:
        while True:
            found, flags, number, payload = await self.frame()
            if found == kind:
                return flags, number, payload

    async def answer(self, number: int) -> bytes:
        """Data of a stream until its end."""
        data = b""
        while True:
            kind, flags, of, payload = await self.frame()
            if of == number and kind == frames.DATA:
                data += payload
            if of == number and kind == frames.HEADERS and flags & frames.END_STREAM:
                return data

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Peer]:
        address = self.writer.get_extra_info("peername")
        reader, writer = await asyncio.open_connection(*address, ssl=client_tls())
        yield Peer(reader, writer)
        writer.transport.abort()

    async def fault(self) -> ErrorCode:
        """Reason that the server ends the connection for."""
        _, _, payload = await self.until(frames.GOAWAY)
        return ErrorCode(int.from_bytes(payload[4:8], "big"))


@asynccontextmanager
async def serving(
    limits: ConnectionLimits = LIMITS,
    memory: MemoryLimits = MEMORY,
    places: Connections | None = None,
) -> AsyncIterator[int]:
    """A server of the methods above, by its port."""
    server = Server(limits, Arrivals(CallMemory(memory)), places=places)
    for name, behaviour in {"Echo": echo, "Hold": hold}.items():
        handler: Any = grpc.unary_unary_rpc_method_handler(behaviour)
        server.add_registered_method_handlers("t", {name: handler})
    pouring: Any = grpc.unary_stream_rpc_method_handler(pour)
    server.add_registered_method_handlers("t", {"Pour": pouring})
    port = add_port(server)
    await server.start()
    try:
        async with asyncio.timeout(120):
            yield port
    finally:
        await server.stop(None)
        await asyncio.sleep(0)  # both sides see the end


@asynccontextmanager
async def peer_at(port: int, start: bytes = START) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_tls())
    writer.write(start)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def connected(
    start: bytes = START, limits: ConnectionLimits = LIMITS, memory: MemoryLimits = MEMORY
) -> AsyncIterator[Peer]:
    async with serving(limits, memory) as port, peer_at(port, start) as peer:
        yield peer


def data(number: int, payload: bytes, flags: int = frames.END_STREAM) -> bytes:
    return frame(frames.DATA, flags, number, payload)


def _in_frames(number: int, payload: bytes) -> list[bytes]:
    pieces = [payload[at : at + 16_000] for at in range(0, len(payload), 16_000)]
    return [*(data(number, each, 0) for each in pieces), data(number, b"")]


def headers(number: int, block: bytes = CALL, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, number, block)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_frames_may_be_cut_anywhere(size: int) -> None:
    whole = headers(1) + data(1, MESSAGE[:4], 0) + data(1, MESSAGE[4:])
    async with connected() as peer:
        for at in range(0, len(whole), size):
            peer.send(whole[at : at + size])
            await asyncio.sleep(0)
        assert await peer.answer(1) == MESSAGE


async def test_padding_priorities_and_continuations_are_taken_off() -> None:
    flags = frames.PADDED | frames.PRIORITISED
    first = frame(frames.HEADERS, flags, 1, b"\x03" + bytes(5) + CALL[:10] + bytes(3))
    rest = frame(frames.CONTINUATION, frames.END_HEADERS, 1, CALL[10:])
    padded = frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x04" + MESSAGE + bytes(4))
    async with connected() as peer:
        peer.send(first, rest, padded)
        assert await peer.answer(1) == MESSAGE


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
        (START + data(1, MESSAGE), ErrorCode.STREAM_CLOSED),
        (START + headers(2), ErrorCode.PROTOCOL_ERROR),
        (START + headers(0), ErrorCode.PROTOCOL_ERROR),
        (START + headers(1, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (START + headers(1, CALL, 0) + data(1, MESSAGE), ErrorCode.PROTOCOL_ERROR),
        (START + frame(frames.CONTINUATION, 4, 1, CALL), ErrorCode.PROTOCOL_ERROR),
        (START + frame(frames.PING, 0, 0, b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (START + frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (START + frame(frames.SETTINGS, 0, 0, b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (START + frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (START + frame(frames.SETTINGS, 0, 1, bytes(6)), ErrorCode.PROTOCOL_ERROR),
        (START + settings_frame({2: 2}), ErrorCode.PROTOCOL_ERROR),
        (START + settings_frame({5: 1 << 24}), ErrorCode.PROTOCOL_ERROR),
        (
            START + frame(frames.SETTINGS, 0, 0, struct.pack("!HIHI", 5, 100, 5, 1 << 14)),
            ErrorCode.PROTOCOL_ERROR,  # though a value follows that may be
        ),
        (START + frame(frames.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (START + frame(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (START + headers(1) + frame(frames.RST_STREAM, 0, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (START + number_frame(frames.RST_STREAM, 0, 8), ErrorCode.PROTOCOL_ERROR),
        (START + frame(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (START + frame(frames.GOAWAY, 0, 0, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (START + frame(frames.WINDOW_UPDATE, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (START + number_frame(frames.WINDOW_UPDATE, 1, 1), ErrorCode.PROTOCOL_ERROR),
        (START + data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (START + headers(1) + frame(frames.DATA, frames.PADDED, 1), ErrorCode.FRAME_SIZE_ERROR),
        (START + frame(frames.CONTINUATION, 4, 0, CALL), ErrorCode.PROTOCOL_ERROR),
        (
            START + headers(1, CALL[:9], 0) + frame(frames.CONTINUATION, 4, 3, CALL[9:]),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (START + headers(1, CALL[:9], 0) + frame(0xBE, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (START + frame(frames.HEADERS, frames.PADDED, 1), ErrorCode.FRAME_SIZE_ERROR),
        (START + frame(frames.HEADERS, frames.PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (START + headers(5) + data(5, MESSAGE) + headers(3), ErrorCode.PROTOCOL_ERROR),
        (START + headers(5) + data(5, MESSAGE) + data(3, MESSAGE), ErrorCode.PROTOCOL_ERROR),
        (START + headers(1, CALL, END) + headers(1, CALL, END), ErrorCode.STREAM_CLOSED),
        (
            START + headers(1) + number_frame(frames.RST_STREAM, 1, 8) + data(1, MESSAGE),
            ErrorCode.STREAM_CLOSED,
        ),
        (
            START
            + headers(1)
            + number_frame(frames.WINDOW_UPDATE, 1, 2**31 - 1 - 65_535)
            + settings_frame({4: 2**31 - 1}),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (START + frame(frames.PUSH_PROMISE, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (START + number_frame(frames.RST_STREAM, 1, 8), ErrorCode.PROTOCOL_ERROR),
        (START + number_frame(frames.WINDOW_UPDATE, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (START + number_frame(frames.WINDOW_UPDATE, 0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (START + settings_frame({4: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (START + settings_frame({5: 100}), ErrorCode.PROTOCOL_ERROR),
        (START + frames.frame_head(0, 0, 1, 1 << 21), ErrorCode.FRAME_SIZE_ERROR),
        (START + frames.frame_head(4, 0, 0, 1 << 15), ErrorCode.FRAME_SIZE_ERROR),
        (
            START + headers(1) + frame(frames.DATA, frames.PADDED, 1, b"\x09123"),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (START + headers(1) + data(1, MESSAGE) + data(1, MESSAGE), ErrorCode.STREAM_CLOSED),
        (frames.PREFACE + headers(1, CALL), ErrorCode.PROTOCOL_ERROR),
        (START + frame(frames.HEADERS, 0x24, 1, b"abcd"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
async def test_who_breaks_the_protocol_loses_the_connection(sent: bytes, code: ErrorCode) -> None:
    async with connected(sent) as peer:
        assert await peer.fault() is code
        assert await peer.reader.read() == b""


async def test_more_than_the_window_is_a_fault() -> None:
    async with connected() as peer:
        hold = CALL.replace(b"/t/Echo", b"/t/Hold")
        peer.send(headers(1, hold), *[data(1, MESSAGE * 100_000, 0)] * 3)  # 2.4 MB, one is read
        assert await peer.fault() is ErrorCode.FLOW_CONTROL_ERROR


async def test_a_call_that_is_cut_off_within_its_message_fails() -> None:
    async with connected() as peer:
        peer.send(headers(1), data(1, MESSAGE[:6]))
        _, _, _ = await peer.until(frames.HEADERS)
        _, number, trailers = await peer.until(frames.HEADERS)
        assert number == 1
        assert b"grpc-status\x0213" in trailers


async def test_calls_beyond_the_limit_are_refused_unseen() -> None:
    async with connected() as peer:
        peer.send(*(headers(number) for number in range(1, 11, 2)))
        _, number, payload = await peer.until(frames.RST_STREAM)
        assert (number, payload[-1]) == (9, ErrorCode.REFUSED_STREAM)
        peer.send(data(3, MESSAGE))
        assert await peer.answer(3) == MESSAGE


async def test_an_answer_follows_the_windows_of_the_peer() -> None:
    message = b"\0\0\0\x01\0" + bytes(256)
    async with connected(frames.PREFACE + settings_frame({4: 100})) as peer:
        peer.send(headers(1), data(1, message))
        assert len((await peer.until(frames.DATA))[2]) == 100
        peer.send(number_frame(frames.WINDOW_UPDATE, 1, 50))
        assert len((await peer.until(frames.DATA))[2]) == 50
        peer.send(settings_frame({4: 1000}))
        assert len(await peer.answer(1)) == len(message) - 150


@pytest.mark.parametrize(
    "block",
    [
        literal(b":method", b"GET") + literal(b":path", b"/"),
        CALL.replace(literal(b":scheme", b"http"), b""),
        CALL.replace(literal(b"te", b"trailers"), literal(b"te", b"gzip")),
        CALL + literal(b"content-length", b"5"),
        CALL + literal(b"content-length", b"-0"),
        CALL + literal(b"k-bin", b"***"),
        CALL + literal(b"Capital", b"v"),
        CALL + literal(b"", b"v"),
        CALL + literal(b"k", b"a\r\nb: c"),
        CALL + literal(b"k", b"\xe4"),
        CALL + literal(b":path", b"/t/Hold"),
        CALL + literal(b":authority", b"late"),
        literal(b":status", b"200") + CALL,
        CALL + literal(b"connection", b"close"),
        CALL.replace(literal(b"content-type", KIND), literal(b"content-type", KIND + b"x")),
    ],
)
async def test_what_is_no_call_of_grpc_is_told_so(block: bytes) -> None:
    async with connected() as peer:
        peer.send(headers(1, block, END))
        flags, _, payload = await peer.until(frames.HEADERS)
        assert flags == END
        assert b"415" in payload


@pytest.mark.parametrize(
    "sent",
    [
        headers(1, literal(b"a", b"b")),  # does not end the request
        headers(1, literal(b":path", b"/x"), END),
        headers(1, literal(b"A", b"b"), END),
        data(1, MESSAGE + b"more"),  # than content-length says
        data(1, MESSAGE[:5]),
        data(1, MESSAGE[:5], 0) + headers(1, literal(b"a", b"b"), END),
    ],
    ids=["no end", "pseudo", "capital", "longer", "shorter", "shorter, with trailers"],
)
async def test_a_malformed_request_is_reset_and_others_go_on(sent: bytes) -> None:
    async with connected() as peer:
        hold = CALL.replace(b"/t/Echo", b"/t/Hold") + literal(b"content-length", b"8")
        peer.send(headers(1, hold), sent)
        assert await peer.until(frames.RST_STREAM) == (0, 1, bytes([0, 0, 0, 1]))
        peer.send(data(1, b"late", 0), headers(1, literal(b"late", b""), END))  # are ignored
        peer.send(headers(3), data(3, MESSAGE[:5], 0), data(3, MESSAGE[5:], 0))
        peer.send(headers(3, literal(b"trailer", b"of no meaning"), END))
        assert await peer.answer(3) == MESSAGE


async def test_long_frames_of_unknown_kinds_are_skipped() -> None:
    async with connected() as peer:
        peer.send(headers(1), frame(0xBE, 0, 1, bytes(1 << 20)), data(1, MESSAGE))
        assert await peer.answer(1) == MESSAGE
        peer.send(frames.frame_head(0xBE, 0, 1, (1 << 20) + 1))
        assert await peer.fault() is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("status", "timeouts"),
    [
        (4, ["0n", "0H", "00000S"]),  # DEADLINE_EXCEEDED
        (
            0,
            [
                "99S",
                "99999999H",
                "999999999S",
                "000000099S",
                "9" * 30 + "S",
                "99 S",
                " 99S",
                "99S ",
            ],
        ),
        (13, ["", "1", "S", "-1S", "+1S", "1x", "1.5S", "0", "1SS", "1S1S"]),  # INTERNAL
    ],
)
async def test_timeouts_are_read_as_grpcs_library_reads_them(
    status: int, timeouts: list[str]
) -> None:
    """The statuses are those of grpcio 1.81, which answers some calls of no time all the same."""
    async with connected() as peer:
        assert [await status_after(peer, each) for each in timeouts] == [status] * len(timeouts)


async def status_after(peer: Peer, deadline: str) -> int:
    """Status of a call with a deadline, on a connection of its own."""
    timed = literal(b":authority", b"here") + CALL + literal(b"grpc-timeout", deadline.encode())
    decoder = Decoder(1 << 14)
    async with peer.another() as other:
        other.send(START, headers(1, timed), data(1, MESSAGE))
        while True:
            _, _, block = await other.until(frames.HEADERS)
            fields = dict(decoder.decode(block))
            if "grpc-status" in fields:
                return int(fields["grpc-status"])


async def test_pings_are_answered_and_a_silent_peer_is_left() -> None:
    async with connected(limits=replace(LIMITS, keepalive_s=0.3, answer_s=0.3)) as peer:
        peer.send(frame(frames.PING, 0, 0, b"12345678"))
        assert await peer.until(frames.PING) == (frames.ACK, 0, b"12345678")
        flags, _, _ = await peer.until(frames.PING)
        assert not flags  # asked by the server
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await peer.until(frames.PING)


async def ping_for_ever(peer: Peer) -> None:
    while True:
        peer.send(frame(frames.PING, 0, 0, bytes(8)) * 10_000)
        await peer.writer.drain()


async def test_who_asks_and_reads_nothing_loses_the_connection() -> None:
    async with connected() as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await ping_for_ever(peer)


@pytest.mark.parametrize("sent", [b"", frames.PREFACE[:10], frames.PREFACE])
async def test_who_does_not_greet_is_left_however_it_goes_on(sent: bytes) -> None:
    async with connected(sent, replace(LIMITS, answer_s=0.3)) as peer:
        with contextlib.suppress(ConnectionResetError):
            await peer.reader.read()  # until the end


async def test_of_many_settings_in_a_frame_the_last_ones_count() -> None:
    """Each one applied to each of a thousand streams stopped the server for a second a frame."""
    many = struct.pack("!HI", 4, 2**31 - 1) * 2000 + struct.pack("!HI", 4, 2)
    async with connected() as peer:
        peer.send(headers(1), frame(frames.SETTINGS, 0, 0, many), data(1, MESSAGE))
        assert await peer.until(frames.DATA) == (0, 1, MESSAGE[:2])
        peer.send(settings_frame({4: 100}))
        assert await peer.answer(1) == MESSAGE[2:]


async def test_a_bug_ends_one_connection_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with connected() as peer:
        monkeypatch.setattr(streams, "read_head", fail)
        monkeypatch.setattr(connection, "_seldom", Seldom(60))
        for _ in range(3):
            async with peer.another() as other:
                other.send(START, headers(1))
                assert await other.fault() is ErrorCode.INTERNAL_ERROR
        monkeypatch.undo()
        peer.send(headers(1), data(1, MESSAGE))
        assert await peer.answer(1) == MESSAGE
    assert [each.message for each in caplog.records] == ["a connection fails"]


async def test_a_call_that_is_late_within_its_answer_is_reset() -> None:
    call = CALL + literal(b"grpc-timeout", b"200m")
    async with connected(frames.PREFACE + settings_frame({4: 3})) as peer:
        peer.send(headers(1, call), data(1, MESSAGE))
        assert await peer.until(frames.DATA) == (0, 1, MESSAGE[:3])
        assert await peer.until(frames.RST_STREAM) == (0, 1, bytes([0, 0, 0, ErrorCode.CANCEL]))


async def test_a_late_call_that_waited_for_the_window_leaves_it_to_others() -> None:
    call = CALL.replace(literal(b":path", b"/t/Echo"), literal(b":path", b"/t/Pour"))
    async with connected(frames.PREFACE + settings_frame({4: 1 << 20})) as peer:
        peer.send(headers(1, call + literal(b"grpc-timeout", b"200m")), data(1, MESSAGE))
        await peer.answer(1)  # all that the connection's window lets through
        peer.send(headers(3), data(3, MESSAGE))
        await asyncio.sleep(0.1)  # its answer waits
        peer.send(number_frame(frames.WINDOW_UPDATE, 0, 8))
        await asyncio.sleep(0.1)
        peer.send(number_frame(frames.WINDOW_UPDATE, 0, 8))
        assert await peer.answer(3) == MESSAGE


async def test_reset_calls_count_until_their_handlers_end() -> None:
    """A peer that opens and resets streams has no more handlers than one that waits."""
    async with connected() as peer:
        for number in range(1, 801, 2):
            peer.send(headers(number), number_frame(frames.RST_STREAM, number, 8))
        peer.send(headers(801), data(801, MESSAGE))
        refused = 0
        while True:
            kind, flags, number, payload = await peer.frame()
            if number == 801:
                break
            if kind == frames.RST_STREAM:
                assert payload[-1] == ErrorCode.REFUSED_STREAM
                refused += 1
        assert refused > 200
        assert flags == frames.END_HEADERS or kind == frames.RST_STREAM


async def test_binary_metadata_may_be_joined_by_commas() -> None:
    head = read_head(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/a/b"),
            ("content-type", "application/grpc"),
            ("k-bin", "YQ,YmI="),
        ]
    )
    assert head.invocation_metadata == (("k-bin", b"a"), ("k-bin", b"bb"))


async def test_a_connection_that_comes_while_the_server_stops_is_closed() -> None:
    server = Server(LIMITS, Arrivals(CallMemory(MEMORY)))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connecting = [asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    opened = asyncio.gather(*connecting, return_exceptions=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await server.stop(None)
    for each in await opened:
        if not isinstance(each, BaseException):
            with contextlib.suppress(ConnectionError):
                await each[0].read()
            each[1].close()


@pytest.mark.parametrize("size", [16_300, 16_400, 60_000])
async def test_headers_that_are_too_long_are_those_of_one_call_alone(size: int) -> None:
    """They ended the connection, with the calls of other callers that shared it."""
    kept = b"\x40" + literal(b"kept", b"in the table")[1:]
    async with connected() as peer:
        peer.send(headers(1), headers(3, CALL + literal(b"k", b"v" * size) + kept))
        flags, number, block = await peer.until(frames.HEADERS)
        assert (flags, number) == (END, 3)
        assert b"grpc-status\x018" in block
        peer.send(data(1, MESSAGE))
        assert await peer.answer(1) == MESSAGE
        peer.send(headers(5, CALL + b"\xbe"), data(5, MESSAGE))  # entry 62
        assert await peer.answer(5) == MESSAGE


async def test_more_headers_than_are_read_end_the_connection() -> None:
    async with connected() as peer:
        peer.send(headers(1, CALL + literal(b"k", b"v" * 70_000)))
        assert await peer.fault() is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize("seed", range(8))
async def test_a_window_in_small_pieces_is_shared_until_all_answers_are_there(seed: int) -> None:
    """Answers of all sizes; one is given up, and streams may have small windows of their own."""
    draw = random.Random(seed)
    sizes = {number: draw.choice((10, 30_000, 60_000)) for number in (1, 3, 5, 7)}
    left = {number: size + 5 for number, size in sizes.items() if number != seed % 4 * 2 + 1}
    async with connected(frames.PREFACE + settings_frame({4: draw.choice((9, 1 << 20))})) as peer:
        for number, size in sizes.items():
            payload = b"\0" + size.to_bytes(4, "big") + bytes(size)
            peer.send(headers(number), *_in_frames(number, payload))
        peer.send(number_frame(frames.RST_STREAM, seed % 4 * 2 + 1, 8))
        granting = asyncio.ensure_future(grant(peer, draw))
        while any(left.values()):
            kind, _, number, payload = await peer.frame()
            if kind == frames.DATA and number in left:
                left[number] -= len(payload)
        granting.cancel()


async def grant(peer: Peer, draw: random.Random) -> None:
    while True:
        more = draw.choice((1, 700, 5000))
        for number in (0, 1, 3, 5, 7):
            if draw.random() < 0.7:
                peer.send(number_frame(frames.WINDOW_UPDATE, number, more))
        await asyncio.sleep(0.001)


async def test_a_small_update_wakes_few_answers() -> None:
    sender = Sender()
    sender.begin_with(1 << 20)
    sender.transport = unittest.mock.Mock(is_closing=lambda: False)
    answers = [Outgoing(number) for number in range(1, 200, 2)]
    sending = [asyncio.ensure_future(sender.send(to, b"", bytes(2000), b"e")) for to in answers]
    await asyncio.sleep(0)
    waiting = [to for to in answers if not to.window]
    assert len(waiting) == 100 - 65_535 // 2000 - 1
    sender.grow(None, 1)
    await asyncio.sleep(0)
    assert [to for to in answers if not to.window] == waiting
    sender.grow(None, 1 << 30)
    await asyncio.gather(*sending)
    assert all(to.has_ended for to in answers)
