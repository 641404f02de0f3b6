"""Bytes that are no message: the caller's mistake on every method, and seldom a line in the log."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2

from braid_client.wire import admin_pb2, inference_pb2
from tests.service.server_process import ServerProcess

TOKEN = "an-admin-token-of-this-test"
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)
MESSAGES = 100  # to each method
TIMEOUT_S = 120.0

SERVICES = [
    service
    for file in (admin_pb2, inference_pb2, service_pb2, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
METHODS = {f"/{service.full_name}/{m.name}": m for service in SERVICES for m in service.methods}
OPEN = {
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
}
PARTS = b"\x98\x3f\x01" * 1_000_000  # fields that nobody knows
BROKEN = b"\xff"  # the beginning of a tag, and nothing after it


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """An empty server that wants a token."""
    store = tmp_path_factory.mktemp("guarded") / "store"
    server = ServerProcess(store, BRAID_ADMIN_TOKEN=TOKEN).start()
    try:
        yield server
    finally:
        server.end()


async def call(
    channel: grpc.aio.Channel, path: str, message: bytes, metadata: Sequence[tuple[str, str]] = ()
) -> grpc.aio.AioRpcError | None:
    """The error that a message is answered with; a stream of answers is left after the first.

    The client's library loses the status of a stream that ends while it sends: then once more.
    """
    while True:
        error = await _call_once(channel, path, message, metadata)
        if error is None or "execute_batch" not in (error.debug_error_string() or ""):
            return error


async def _call_once(
    channel: grpc.aio.Channel, path: str, message: bytes, metadata: Sequence[tuple[str, str]]
) -> grpc.aio.AioRpcError | None:
    method = METHODS[path]
    kind = (
        "stream" if each else "unary" for each in (method.client_streaming, method.server_streaming)
    )
    begin: Any = getattr(channel, "_".join(kind))(path)
    request: Any = iter([message]) if method.client_streaming else message
    calling = begin(request, metadata=metadata, timeout=TIMEOUT_S)
    try:
        if method.server_streaming:
            await calling.read()
            if not calling.done():
                calling.cancel()
        else:
            await calling
    except grpc.aio.AioRpcError as error:
        return error
    return None


async def test_what_cannot_be_decoded_is_the_callers_mistake(guarded: ServerProcess) -> None:
    async with grpc.aio.insecure_channel(guarded.address) as channel:
        errors = {path: await call(channel, path, BROKEN, AUTHORIZED) for path in METHODS}

    for path, error in errors.items():
        assert error is not None, path
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (path, error.details())
        assert f"cannot be decoded as a request of {path};" in (error.details() or "")
        assert dict(error.trailing_metadata() or ())["braid-request-id"], path


async def test_too_many_parts_are_the_callers_mistake(guarded: ServerProcess) -> None:
    async with grpc.aio.insecure_channel(guarded.address) as channel:
        errors = {path: await call(channel, path, PARTS, AUTHORIZED) for path in METHODS}

    for path, error in errors.items():
        assert error is not None, path
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (path, error.details())
        assert "more than 131072 fields and messages" in (error.details() or ""), path
        assert dict(error.trailing_metadata() or ())["braid-request-id"], path
    assert "Traceback" not in guarded.log


async def test_who_may_not_call_hears_that_first(guarded: ServerProcess) -> None:
    async with grpc.aio.insecure_channel(guarded.address) as channel:
        errors = {path: await call(channel, path, BROKEN) for path in METHODS}

    for path, error in errors.items():
        assert error is not None
        code = grpc.StatusCode.INVALID_ARGUMENT if path in OPEN else grpc.StatusCode.UNAUTHENTICATED
        assert error.code() is code, path


async def test_random_bytes_are_never_the_servers_mistake(guarded: ServerProcess) -> None:
    rng = random.Random(9)
    outcomes: Counter[tuple[str, str]] = Counter()
    gate = asyncio.Semaphore(20)

    async def send(channel: grpc.aio.Channel, path: str) -> None:
        async with gate:
            error = await call(channel, path, rng.randbytes(rng.randrange(1, 40)), AUTHORIZED)
        outcomes[path, "OK" if error is None else error.code().name] += 1

    async with grpc.aio.insecure_channel(guarded.address) as channel:
        await asyncio.gather(*(send(channel, path) for path in METHODS for _ in range(MESSAGES)))

    assert outcomes.total() == MESSAGES * len(METHODS)
    bad = {each for each in outcomes if each[1] in ("UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED")}
    assert not bad
    assert all(outcomes[path, "INVALID_ARGUMENT"] for path in METHODS)
    assert "Traceback" not in guarded.log
    logged = re.findall(r"a message cannot be decoded .*method=(\S+)", guarded.log)
    assert set(logged) == set(METHODS)
    assert len(logged) < outcomes.total() / 2
