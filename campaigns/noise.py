"""Random and damaged messages to every method that a server's reflection names.

    reflection ──> methods ──drawn──> messages: noise, valid ones, valid ones damaged
                                          └──send──> status; never the server's mistake

The same seed makes the same messages. A stream carries up to five.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from campaigns.fuzz.mutations import change_field, damaged_bytes
from tests.attack.target import PREY, Target

HANG_S = 120.0
_SERVERS_MISTAKES = ("INTERNAL", "UNKNOWN", "DATA_LOSS")
_NUMBERS = (0, 1, -1, 2, 3, 4, 127, 1 << 20, 1 << 31, (1 << 31) - 1, (1 << 63) - 1, -(1 << 63))
_NAMES = (
    *(PREY, PREY, PREY, "x", "y", "FP32", "BYTES", "BF16", "1", "", "cpu", "sequential", "int8"),
    *("../../etc/passwd", "a" * 3000, "\x00", "é\u202e", "<script>alert(1)</script>", "a\nb", "%n"),
    *("shared_memory_region", "binary_data", "priority", "timeout", "sequence_id", "file:1/model"),
)
_DEPTH = 5

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Method:
    """A method, as reflection describes it."""

    path: str
    request: type[Message]
    streams_in: bool
    streams_out: bool


class _Authorised(grpc.StreamStreamClientInterceptor):
    """Adds metadata to the calls of reflection's own client."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Go on with the metadata."""
        return continuation(details._replace(metadata=self._metadata), requests)


def methods_of(address: str, metadata: Metadata) -> list[Method]:
    """Ask a server for all methods of all its services."""
    with grpc.insecure_channel(address) as channel:
        called = grpc.intercept_channel(channel, _Authorised(metadata))
        database = ProtoReflectionDescriptorDatabase(called)
        pool = DescriptorPool(database)
        services = [pool.FindServiceByName(name) for name in sorted(database.get_services())]
        return [
            Method(
                f"/{service.full_name}/{method.name}",
                GetMessageClass(method.input_type),
                method.client_streaming,
                method.server_streaming,
            )
            for service in services
            for method in service.methods
        ]


def messages(method: Method, rng: random.Random) -> Iterator[bytes]:
    """Draw what one call sends."""
    for _ in range(rng.randrange(1, 6) if method.streams_in else 1):
        yield _message(method.request, rng)


def _message(kind: type[Message], rng: random.Random) -> bytes:
    way = rng.randrange(8)
    if way == 0:
        return rng.randbytes(rng.choice((1, 3, 20, 200, 5000)))
    message = drawn(kind, rng)
    if way in (1, 2):
        return message.SerializeToString()
    if way == 3:
        for _ in range(3):
            change_field(message, rng)
        return message.SerializeToString()
    data = message.SerializeToString()
    if way == 4:  # a length that lies, then what was drawn
        tag, length = rng.randrange(1, 16) << 3 | 2, rng.choice((5, 1 << 20, (1 << 31) - 1))
        return bytes([tag]) + _varint(length) + data
    if way == 5:  # groups or unknown fields, nested
        return bytes([rng.choice((0x0B, 0x13, 0x7B))]) * rng.choice((1, 90, 5000)) + data
    return damaged_bytes(data, rng)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def drawn(kind: type[Message], rng: random.Random, depth: int = 0) -> Message:
    """Draw a valid message."""
    message = kind()
    for field_ in kind.DESCRIPTOR.fields:
        if rng.random() < 0.7 and not (depth >= _DEPTH and field_.message_type):
            _draw_field(message, field_, rng, depth)
    return message


def _draw_field(message: Any, field_: Any, rng: random.Random, depth: int) -> None:
    name = field_.name
    if field_.message_type and field_.message_type.GetOptions().map_entry:
        _draw_entry(getattr(message, name), field_.message_type, rng, depth)
    elif field_.is_repeated:
        values = getattr(message, name)
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            if field_.message_type:
                inner = drawn(GetMessageClass(field_.message_type), rng, depth + 1)
                values.add().CopyFrom(inner)
            else:
                values.append(_scalar(field_, rng))
    elif field_.message_type:
        inner = drawn(GetMessageClass(field_.message_type), rng, depth + 1)
        getattr(message, name).CopyFrom(inner)
    else:
        setattr(message, name, _scalar(field_, rng))


def _draw_entry(values: Any, entry: Any, rng: random.Random, depth: int) -> None:
    key = _scalar(entry.fields_by_name["key"], rng)
    value = entry.fields_by_name["value"]
    if value.message_type:
        values[key].CopyFrom(drawn(GetMessageClass(value.message_type), rng, depth + 1))
    else:
        values[key] = _scalar(value, rng)


def _scalar(field_: Any, rng: random.Random) -> Any:
    kind = field_.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field_.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 12, 24, 100)))
        return rng.choice(_NAMES)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice((0.0, 1.0, -1.0, 1e30, float("inf"), float("nan")))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice((0, 1, 2, 77))
    wide = kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    highest = (1 << (63 if wide else 31)) - 1 if signed else (1 << (64 if wide else 32)) - 1
    return rng.choice([n for n in _NUMBERS if (-highest - 1 if signed else 0) <= n <= highest])


@dataclass
class Outcomes:
    """Ends of calls by method and status, and what must not have been."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    messages: int = 0
    slowest_s: float = 0.0

    def note(self, seed: int, method: Method, status: str, detail: str) -> None:
        """Count a call; ``detail`` is what the status said."""
        self.counts[method.path, status] += 1
        if status in _SERVERS_MISTAKES or (status == "UNAVAILABLE" and "braid" not in detail):
            self.findings.append(f"{method.path} seed {seed}: {status}: {detail}")


class Sender:
    """Sends drawn calls to one server; notes how they end in ``outcomes``."""

    def __init__(self, target: Target, outcomes: Outcomes) -> None:
        self.methods = methods_of(target.address, target.metadata)
        self._outcomes = outcomes
        self._metadata = target.metadata
        self._channel = grpc.aio.insecure_channel(target.address)
        self._blocking = grpc.insecure_channel(target.address)

    async def close(self) -> None:
        await self._channel.close()
        self._blocking.close()

    async def send(self, seeds: Sequence[int], at_once: int = 16) -> None:
        """Make one call for each seed, to each method in turn."""
        gate = asyncio.Semaphore(at_once)

        async def one(seed: int) -> None:
            async with gate:
                await self._call(self.methods[seed % len(self.methods)], seed)

        await asyncio.gather(*map(one, seeds))

    async def _call(self, method: Method, seed: int) -> None:
        sent = list(messages(method, random.Random(seed)))
        self._outcomes.messages += len(sent)
        began = time.monotonic()
        if method.streams_in:
            blocking = self._blocking
            ended = asyncio.to_thread(_stream_ended, blocking, method, sent, self._metadata)
            status, detail = await ended
        else:
            status, detail = await _ended(self._channel, method, sent, self._metadata)
        seconds = time.monotonic() - began
        self._outcomes.slowest_s = max(self._outcomes.slowest_s, seconds)
        if seconds > HANG_S:
            self._outcomes.findings.append(f"{method.path} seed {seed}: hung")
        self._outcomes.note(seed, method, status, detail)


async def _ended(
    channel: grpc.aio.Channel, method: Method, sent: Sequence[bytes], metadata: Metadata
) -> tuple[str, str]:
    """Status and detail of a call of one message; a stream of answers is left after the first."""
    kind = "unary_stream" if method.streams_out else "unary_unary"
    begin: Any = getattr(channel, kind)(method.path)
    call = begin(sent[0], timeout=2 * HANG_S, metadata=metadata)
    try:
        if method.streams_out:
            if await asyncio.wait_for(call.read(), 1.0) is not grpc.aio.EOF:
                call.cancel()
                return "OK", ""
        else:
            await call
        return "OK", ""
    except grpc.aio.AioRpcError as error:
        return error.code().name, _detail(error)
    except TimeoutError:  # a stream that waits for news, as of health
        call.cancel()
        return "OK", ""


def _stream_ended(
    channel: grpc.Channel, method: Method, sent: Sequence[bytes], metadata: Metadata
) -> tuple[str, str]:
    """Do the same for a stream of messages, where asyncio's client loses the status of some."""
    kind = "stream_stream" if method.streams_out else "stream_unary"
    send = getattr(channel, kind)(method.path)
    options: Any = {"timeout": 2 * HANG_S, "metadata": metadata}
    try:
        if not method.streams_out:
            send(iter(sent), **options)
            return "OK", ""
        for _ in (call := send(iter(sent), **options)):
            pass
        return call.code().name, ""
    except grpc.RpcError as error:
        return error.code().name, _detail(error)


def _detail(error: Any) -> str:
    """What a status said, with a word if Braid said it."""
    source = "braid" if "braid-request-id" in dict(error.trailing_metadata() or ()) else ""
    return f"{error.details()} {source}"
