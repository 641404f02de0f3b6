"""Damaged bytes of gRPC's own clients, sent to a server of HTTP/2 in this process.

    recording + seed ──damaged──> bytes in pieces ──> Server ──> no error in the loop, no call left,
                                                              and the next valid call is answered

``python -m campaigns.fuzz.http2`` records the clients' bytes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from braid.server.http2 import frames
from braid.server.http2.arrivals import Arrivals
from braid.server.http2.server import Server
from braid.server.http2.streams import ConnectionLimits
from braid.server.inference.call_memory import CallMemory, MemoryLimits
from braid.server.rpc.guarding import Guarding
from tests.server.http2.kinds_of_port import add_port, client_tls
from tests.server.http2.kinds_of_port import channel as channel_to

RECORDINGS = Path(__file__).parent / "recordings"
LIMITS = ConnectionLimits(message_bytes=1 << 20, streams=8, keepalive_s=60.0, answer_s=20.0)
TURNS = 40
"""Turns of the loop in which a damaged connection is answered before its peer leaves."""


async def _echo(request: bytes, _: Any) -> bytes:
    return bytes(request)


async def _echo_each(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(bytes(request))


async def _pour(request: bytes, context: Any) -> None:
    while True:
        await context.write(bytes(request) * 1000)


class _Errors(logging.Handler):
    """Errors in the log, which are findings."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an error."""
        self._findings.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


class Attacked:
    """Server under attack, and what went wrong in it."""

    def __init__(self, server: Server, port: int, tls: ssl.SSLContext | None) -> None:
        self.server, self.port, self._tls = server, port, tls
        self.findings: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.findings.append(str(context)))

    async def attack(self, seed: int) -> None:
        """Send one damaged recording; its answers are read, or not."""
        draw = random.Random(seed)
        data = damaged(draw, draw.choice(recordings()))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._tls)
        if draw.random() < 0.3:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            for piece in _pieces(draw, data):
                if writer.is_closing():
                    break
                writer.write(piece)
                await asyncio.sleep(0)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        writer.transport.abort()
        del reader

    async def check(self) -> None:
        """Look whether every call has ended, and a valid one is answered."""
        async with asyncio.timeout(120):
            while self.server._calls or self.server._connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with channel_to(self.port, options, tls=self._tls is not None) as channel:
                method: Any = channel.unary_unary("/t/Echo")
                if await method(b"still there") != b"still there":
                    self.findings.append("a wrong answer")


@asynccontextmanager
async def attacked(*, tls: bool = False) -> AsyncIterator[Attacked]:
    """Serve methods of each kind, health and reflection."""
    memory = CallMemory(MemoryLimits(1 << 20, 1 << 22, 1 << 24))
    server = Server(LIMITS, Arrivals(memory), [Guarding(memory)])
    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
        "EchoEach": grpc.stream_stream_rpc_method_handler(_echo_each),
        "Pour": grpc.unary_stream_rpc_method_handler(_pour),
    }
    server.add_registered_method_handlers("t", handlers)
    servicer: Any = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(["grpc.health.v1.Health"], server)
    port = add_port(server, tls=tls)
    await server.start()
    target = Attacked(server, port, client_tls(tls=tls))
    errors = _Errors(target.findings)
    log = logging.getLogger("braid.rpc")
    log.addHandler(errors)
    try:
        yield target
    finally:
        log.removeHandler(errors)
        await server.stop(None)


def recordings() -> list[bytes]:
    """Bytes that gRPC's clients have sent, one connection each."""
    return [path.read_bytes() for path in sorted(RECORDINGS.glob("*.bin"))]


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Damage a recording in one to six places, most of them within its frames."""
    parts = _frames(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(parts))
        draw.choice(_DAMAGES)(draw, parts, at)
        parts = parts or [b""]
    return b"".join(parts)


def _frames(data: bytes) -> list[bytes]:
    parts, at = [data[: len(frames.PREFACE)]], len(frames.PREFACE)
    while at < len(data):
        end = at + frames.HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
        parts.append(data[at:end])
        at = end
    return parts


def _flip(draw: random.Random, parts: list[bytes], at: int) -> None:
    part = bytearray(parts[at])
    for _ in range(draw.choice((1, 1, 2, 8))):
        if part:
            part[draw.randrange(len(part))] = draw.choice(
                (0, 1, 0x7F, 0x80, 0xFF, draw.getrandbits(8))
            )
    parts[at] = bytes(part)


def _cut(draw: random.Random, parts: list[bytes], at: int) -> None:
    parts[at] = parts[at][: draw.randrange(len(parts[at]) + 1)]


def _leave_out(_: random.Random, parts: list[bytes], at: int) -> None:
    del parts[at]


def _repeat(draw: random.Random, parts: list[bytes], at: int) -> None:
    parts[at:at] = [parts[at]] * draw.choice((1, 2, 50))


def _swap(draw: random.Random, parts: list[bytes], at: int) -> None:
    other = draw.randrange(len(parts))
    parts[at], parts[other] = parts[other], parts[at]


def _change_head(draw: random.Random, parts: list[bytes], at: int) -> None:
    payload = parts[at][frames.HEAD_BYTES :]
    parts[at] = frames.frame(
        draw.randrange(11), draw.getrandbits(8), draw.choice((0, 1, 2, 3, 5, 7, 2**31 - 1)), payload
    )


def _resize(draw: random.Random, parts: list[bytes], at: int) -> None:
    payload = parts[at][frames.HEAD_BYTES :]
    size = draw.choice((0, len(payload) // 2, len(payload) * 2 + 1, 16_384))
    parts[at] = parts[at][:3].replace(parts[at][:3], size.to_bytes(3, "big")) + parts[at][3:9]
    parts[at] += (payload + bytes(size))[:size]


def _insert(draw: random.Random, parts: list[bytes], at: int) -> None:
    number = draw.choice((0, 1, 3, 5))
    much = draw.choice((0, 1, 65_535, 2**31 - 1))
    inserted = [
        frames.settings_frame({draw.randrange(8): much}),
        frames.number_frame(frames.WINDOW_UPDATE, number, much),
        frames.number_frame(frames.RST_STREAM, number, draw.randrange(16)),
        frames.frame(frames.PING, draw.getrandbits(1), 0, bytes(8)),
        frames.frame(frames.PRIORITY, 0, number, bytes(5)),
        frames.frame(frames.DATA, draw.getrandbits(8), number, draw.randbytes(draw.randrange(40))),
        frames.frame(frames.DATA, 0, number, struct.pack("!BI", draw.randrange(3), much)),
        frames.frame(frames.HEADERS, draw.getrandbits(8), number, draw.randbytes(20)),
        frames.frame(frames.CONTINUATION, draw.choice((0, 4)), number, draw.randbytes(20)),
        frames.goaway_frame(0, frames.ErrorCode.NO_ERROR),
    ]
    parts.insert(at + 1, draw.choice(inserted) * draw.choice((1, 1, 1, 100)))


_DAMAGES = (_flip, _flip, _flip, _cut, _leave_out, _repeat, _swap, _change_head, _resize, _insert)


def _pieces(draw: random.Random, data: bytes) -> list[bytes]:
    size = draw.choice((1 + len(data) // 50, 1000, 20_000, 1 << 20))
    return [data[at : at + size] for at in range(0, len(data), size)]


async def record() -> None:
    """Write what gRPC's clients send for calls of every kind."""
    RECORDINGS.mkdir(exist_ok=True)
    async with attacked() as target:
        for name, calls in {"single": _single, "streams": _streams, "known": _known}.items():
            sent: list[bytes] = []
            relay = await asyncio.start_server(_Relay(target.port, sent).serve, "127.0.0.1", 0)
            port = relay.sockets[0].getsockname()[1]
            await asyncio.to_thread(calls, f"127.0.0.1:{port}")
            relay.close()
            (RECORDINGS / f"{name}.bin").write_bytes(b"".join(sent))


class _Relay:
    """Relay that keeps what clients send."""

    def __init__(self, port: int, sent: list[bytes]) -> None:
        self._port, self._sent = port, sent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.ensure_future(self._copy(answers, writer, []))
        await self._copy(reader, requests, self._sent)
        requests.close()
        await back

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: list[bytes]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                kept.append(data)
                writer.write(data)
        writer.close()


def _single(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        method: Any = channel.unary_unary("/t/Echo")
        method(b"a message", timeout=10, metadata=[("name", "value"), ("raw-bin", b"\0\xff")])
        method(bytes(40_000), compression=grpc.Compression.Gzip)
        method(bytes(range(256)) * 100)
        with contextlib.suppress(grpc.RpcError):
            unknown: Any = channel.unary_unary("/t/Nothing")
            unknown(b"")


def _streams(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        echo: Any = channel.stream_stream("/t/EchoEach")
        list(echo(bytes([n]) * n * 40 for n in range(30)))
        pouring: Any = channel.unary_stream("/t/Pour")
        answers = pouring(b"abc")
        next(answers)
        answers.cancel()
        list(echo(iter([b"", bytes(20_000)]), compression=grpc.Compression.Deflate))


def _known(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest())
        watching = stub.Watch(health_pb2.HealthCheckRequest())
        next(watching)
        services = ProtoReflectionDescriptorDatabase(channel)
        assert "grpc.health.v1.Health" in services.get_services()
        services.FindFileContainingSymbol("grpc.health.v1.Health")
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(record())
