import asyncio
import gc
import os
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from braid.server.http2.arrivals import Arrivals
from braid.server.http2.server import Server
from braid.server.http2.streams import ConnectionLimits
from braid.server.inference.call_memory import CallMemory, MemoryLimits
from tests.server.http2.kinds_of_port import add_port, channel, on_each_kind_of_port

__all__ = ["on_each_kind_of_port"]

MEMORY = MemoryLimits(16 << 20, 16 << 20, 64 << 20)
LIMITS = ConnectionLimits(message_bytes=4 << 20, streams=8, keepalive_s=60.0, answer_s=20.0)
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
Code = grpc.StatusCode


async def echo(request: bytes, _: Any) -> bytes:
    return bytes(request)


async def echo_each(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(bytes(request))


async def count(requests: AsyncIterator[bytes], _: Any) -> bytes:
    return str([len(request) async for request in requests]).encode()


async def generate(request: bytes, context: Any) -> None:
    for number in range(int(bytes(request))):
        await context.write(bytes([number]) * number)


async def late_sum(requests: AsyncIterator[bytes], _: Any) -> bytes:
    await asyncio.sleep(0.05)
    return str(sum([int(bytes(request)) async for request in requests])).encode()


poured = [0]
"""Messages of ``pour`` that were sent."""


async def pour(_: bytes, context: Any) -> None:
    poured[0] = 0
    while True:
        await context.write(bytes(1 << 20))
        poured[0] += 1


class Methods(grpc.GenericRpcHandler):
    def __init__(self, **more: Callable[..., Any]) -> None:
        self._handlers: dict[str, Any] = {
            "/t/Echo": grpc.unary_unary_rpc_method_handler(echo),
            "/t/EchoEach": grpc.stream_stream_rpc_method_handler(echo_each),
            "/t/Count": grpc.stream_unary_rpc_method_handler(count),
            "/t/Sum": grpc.stream_unary_rpc_method_handler(late_sum),
            "/t/Pour": grpc.unary_stream_rpc_method_handler(pour),
            "/t/Generate": grpc.unary_stream_rpc_method_handler(generate),
        }
        for name, behaviour in more.items():
            self._handlers[f"/t/{name}"] = grpc.unary_unary_rpc_method_handler(behaviour)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)


@asynccontextmanager
async def listening(
    limits: ConnectionLimits = LIMITS, interceptors: Any = (), **more: Callable[..., Any]
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(limits, Arrivals(CallMemory(MEMORY)), interceptors)
    server.add_generic_rpc_handlers([Methods(**more)])
    port = add_port(server)
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(None)
        await asyncio.sleep(0)


def connected(port: int) -> Any:
    """A channel on a connection of its own; its stubs know messages of protobuf only."""
    return channel(port, OPTIONS)


@asynccontextmanager
async def serving(
    limits: ConnectionLimits = LIMITS, interceptors: Any = (), **more: Callable[..., Any]
) -> AsyncIterator[tuple[Server, Any]]:
    async with (
        listening(limits, interceptors, **more) as (server, port),
        connected(port) as channel,
    ):
        yield server, channel


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_384, 70_000, 1 << 20, 4 << 20])
async def test_messages_of_any_size_come_back(size: int) -> None:
    message = os.urandom(size)
    async with serving() as (_, channel):
        assert await channel.unary_unary("/t/Echo")(message) == message


async def test_streams_keep_the_order_of_their_messages() -> None:
    sizes = [0, 5, 3_000_000, 1, 20_000, 0]
    messages = [os.urandom(size) for size in sizes]
    async with serving() as (_, channel):
        answers = channel.stream_stream("/t/EchoEach")(iter(messages))
        assert [answer async for answer in answers] == messages
        assert await channel.stream_unary("/t/Count")(iter(messages)) == str(sizes).encode()
        generated = channel.unary_stream("/t/Generate")(b"200")
        assert [len(answer) async for answer in generated] == list(range(200))


async def test_many_small_messages_wait_unread_without_loss() -> None:
    numbers = range(5000)
    async with serving() as (_, channel):
        call = channel.stream_unary("/t/Sum")(str(number).encode() for number in numbers)
        assert int(await call) == sum(numbers)


class Parsed:
    """What a handler makes of a message."""


async def test_a_refused_call_keeps_nothing_of_its_message() -> None:
    kept: list[weakref.ref[Parsed]] = []

    async def refuse(_: bytes, context: Any) -> None:
        parsed, error = Parsed(), ValueError("not this one")
        kept.append(weakref.ref(parsed))
        try:
            raise error
        except ValueError as refused:
            await context.abort(Code.INVALID_ARGUMENT, str(refused))

    async def fail(_: bytes, __: Any) -> None:
        parsed, error = Parsed(), ValueError("not this one")
        kept.append(weakref.ref(parsed))
        raise error

    async with serving(Refuse=refuse, Fail=fail) as (_, channel):
        gc.disable()
        try:
            for method in ("/t/Refuse", "/t/Fail"):
                with pytest.raises(grpc.aio.AioRpcError, match="not this one"):
                    await channel.unary_unary(method)(b"")
            await channel.unary_unary("/t/Echo")(b"")  # the calls before it have ended
            assert [each() for each in kept] == [None, None]
        finally:
            gc.enable()


async def test_calls_of_one_connection_run_beside_each_other() -> None:
    async with serving() as (_, channel):
        messages = [os.urandom(300_000) for _ in range(8)]
        answers = await asyncio.gather(*(channel.unary_unary("/t/Echo")(m) for m in messages))
        assert answers == messages


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read(compression: grpc.Compression) -> None:
    message = bytes(100_000) + os.urandom(1000)
    async with serving() as (_, channel):
        call = channel.unary_unary("/t/Echo")(message, compression=compression)
        assert await call == message


async def test_status_and_metadata_reach_the_caller_as_they_are() -> None:
    async def fail(_: bytes, context: Any) -> bytes:
        given = dict(context.invocation_metadata())
        trailing = (("name", given["name"]), ("raw-bin", given["raw-bin"]))
        await context.abort(Code.NOT_FOUND, "100 % of \n that, für dich", trailing)
        raise AssertionError("abort raises")

    async with serving(Fail=fail) as (_, channel):
        metadata = (("name", "a value"), ("raw-bin", bytes(range(256))))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t/Fail")(b"", metadata=metadata)
    assert caught.value.code() is Code.NOT_FOUND
    assert caught.value.details() == "100 % of \n that, für dich"
    assert set(metadata) <= set(caught.value.trailing_metadata())


async def test_a_bug_in_a_handler_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: bytes, __: Any) -> bytes:
        raise ZeroDivisionError("a bug")

    async with serving(Fail=fail) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t/Fail")(b"")
    assert caught.value.code() is Code.UNKNOWN
    assert "internal error" in caplog.text


async def test_a_caller_that_leaves_ends_its_handler_and_a_late_one_too() -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def wait(request: bytes, context: Any) -> bytes:
        context.add_done_callback(lambda _: seen.put_nowait("done"))
        seen.put_nowait("began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.put_nowait("cancelled")
            raise
        return request

    async with serving(Wait=wait) as (_, channel):
        call = channel.unary_unary("/t/Wait")(b"")
        assert await seen.get() == "began"
        call.cancel()
        assert [await seen.get(), await seen.get()] == ["cancelled", "done"]
        seconds = 0.1
        while seen.empty():  # the call was late before its handler began
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/t/Wait")(b"", timeout=seconds)
            assert caught.value.code() is Code.DEADLINE_EXCEEDED
            seconds *= 2
        assert [await seen.get() for _ in range(3)] == ["began", "cancelled", "done"]


async def test_the_time_that_remains_is_the_callers() -> None:
    async def remaining(_: bytes, context: Any) -> bytes:
        return str(context.time_remaining()).encode()

    async with serving(Remaining=remaining) as (_, channel):
        assert await channel.unary_unary("/t/Remaining")(b"") == b"None"
        assert 30 < float(await channel.unary_unary("/t/Remaining")(b"", timeout=100)) < 102


async def test_calls_beyond_the_limit_wait_their_turn() -> None:
    running = most = 0

    async def wait(request: bytes, _: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return bytes(request)

    async with serving(Wait=wait) as (_, channel):
        await asyncio.gather(*(channel.unary_unary("/t/Wait")(b"") for _ in range(40)))
    assert most <= LIMITS.streams


async def test_interceptors_see_each_call_before_its_message() -> None:
    seen = []

    class Seeing(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.append((details.method, dict(details.invocation_metadata).get("k")))
            return await continuation(details)

    async with serving(interceptors=[Seeing(), Seeing()]) as (_, channel):
        await channel.unary_unary("/t/Echo")(b"", metadata=(("k", "v"),))
    assert seen == [("/t/Echo", "v")] * 2


async def test_stop_lets_calls_end_within_its_grace() -> None:
    began = asyncio.Event()

    async def wait(request: bytes, _: Any) -> bytes:
        began.set()
        await asyncio.sleep(0.3)
        return bytes(request)

    async with serving(Wait=wait) as (server, channel):
        call = channel.unary_unary("/t/Wait")(b"kept")
        await began.wait()
        await server.stop(120.0)
        assert await call == b"kept"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t/Echo")(b"")
        assert caught.value.code() is Code.UNAVAILABLE


async def test_a_port_in_use_is_refused() -> None:
    server = Server(LIMITS, Arrivals(CallMemory(MEMORY)))
    port = server.add_insecure_port("127.0.0.1:0")
    with pytest.raises(RuntimeError, match=str(port)):
        Server(LIMITS, Arrivals(CallMemory(MEMORY))).add_insecure_port(f"127.0.0.1:{port}")
    await server.stop(None)
