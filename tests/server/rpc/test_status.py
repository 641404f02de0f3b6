from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from braid.core import errors
from braid.server.rpc.status import (
    STATUS,
    abort,
    answering,
    status_code,
    status_message,
    wire_error,
)

Behaviour = Callable[[bytes, grpc.aio.ServicerContext[Any, Any]], Awaitable[bytes]]


@asynccontextmanager
async def calling(behaviour: Behaviour) -> AsyncIterator[Callable[[], Any]]:
    """A server with one method, and a function that calls it."""
    handler: Any = grpc.unary_unary_rpc_method_handler(behaviour)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"M": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/t/M")
        yield lambda: method(b"")
    await server.stop(0)


def raising(error: Exception) -> Behaviour:
    async def method(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        async with answering(context):
            raise error

    return method


def every_error() -> list[type[errors.BraidError]]:
    found = [errors.BraidError]
    for base in found:
        found.extend(base.__subclasses__())
    return [error for error in found if error.__module__ == "braid.core.errors"]


def test_every_class_of_the_tree_has_a_line_in_the_table() -> None:
    assert set(every_error()) == set(STATUS)


def test_a_class_from_elsewhere_takes_the_status_of_its_base() -> None:
    class Elsewhere(errors.QueueFull):
        pass

    assert status_code(Elsewhere("full")) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status_code(ValueError()) is grpc.StatusCode.INTERNAL


async def test_our_errors_arrive_with_status_message_and_request_id() -> None:
    async with calling(raising(errors.ModelNotFound("lenet"))) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "no model named 'lenet'" in (caught.value.details() or "")
    assert len(dict(caught.value.trailing_metadata())["braid-request-id"]) == 16


async def test_foreign_errors_say_nothing_but_the_request_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with calling(raising(RuntimeError("password=hunter2"))) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()

    request = dict(caught.value.trailing_metadata())["braid-request-id"]
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == f"internal error (request id {request})"
    assert "hunter2" in caplog.text  # the log keeps what the caller may not see


async def test_a_retry_hint_travels_in_both_forms() -> None:
    async with calling(raising(errors.QueueFull("queue full", retry_after_s=0.25))) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()

    assert dict(caught.value.trailing_metadata())["braid-retry-after-ms"] == "250"
    status = rpc_status.from_call(caught.value)
    retry = error_details_pb2.RetryInfo()
    assert status is not None
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 250


@pytest.mark.parametrize("char", ["x", "\n", "模", "\U0001f9f5", "\udc80"])
async def test_a_huge_message_still_arrives(char: str) -> None:
    async with calling(raising(errors.QueueFull(char * 100_000, retry_after_s=1))) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (caught.value.details() or "").isprintable()


async def test_an_answer_carries_the_request_id_too() -> None:
    async def method(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        async with answering(context) as request:
            return request.encode()

    async with calling(method) as call:
        pending = call()
        answer = await pending

        assert dict(await pending.trailing_metadata())["braid-request-id"] == answer.decode()


async def test_an_abort_inside_the_body_passes_unchanged() -> None:
    async def method(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        async with answering(context):
            await abort(context, errors.Draining("the server is shutting down"))

    async with calling(method) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_error_inside_a_stream_has_a_code_and_a_message() -> None:
    assert wire_error(errors.InvalidTensor("input 'x' is missing")) == (3, "input 'x' is missing")
    assert status_message(errors.BraidError("detail")).startswith("internal error")
