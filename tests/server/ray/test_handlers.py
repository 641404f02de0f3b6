"""Braid's handlers on a server that somebody else made, as Ray Serve's is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc.aio._server import Server as ConcreteServer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from braid.core.errors import StartupError
from braid.server.inference.call_memory import CallMemory, MemoryLimits
from braid.server.observability.tracing import Sampling
from braid.server.ray.handlers import ReplicaPorts, add_to_replica, serve_here
from braid.server.servicers.health import Health
from braid.server.settings import Settings

TOKEN = "a token of tests, no secret"
BEARER = (("authorization", f"Bearer {TOKEN}"),)


def ports(settings: Settings, health: Health) -> ReplicaPorts:
    def add_services(server: Any) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(health, server)

    memory = CallMemory(MemoryLimits(1 << 20, 1 << 20, 1 << 20))
    return ReplicaPorts(settings, add_services, Sampling(), memory)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[ConcreteServer, grpc.aio.Channel]]:
    """A server with what this process's replica serves, and a channel to it."""
    server: Any = grpc.aio.server()
    add_to_replica(object(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield server, channel
    await server.stop(None)


async def code_and_trailers(call: Any) -> tuple[grpc.StatusCode, dict[str, Any]]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), dict(refused.value.trailing_metadata())


@pytest.fixture
def no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process serves, before the test and after it."""
    from braid.server.ray import handlers

    monkeypatch.setattr(handlers, "_replica", handlers._Replica())


pytestmark = pytest.mark.usefixtures("no_replica")


async def nothing() -> None:
    """Stop nothing."""


async def test_where_no_node_is_up_every_call_is_unavailable_with_a_hint() -> None:
    async with served() as (_, channel):
        infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        code, trailers = await code_and_trailers(infer(b"not a message"))

        assert code is grpc.StatusCode.UNAVAILABLE
        assert trailers["braid-retry-after-ms"] == "1000"

        serves: Any = channel.unary_unary("/ray.serve.RayServeAPIService/Healthz")
        code, _ = await code_and_trailers(serves(b""))
        assert code is grpc.StatusCode.UNIMPLEMENTED  # left to Ray Serve


async def test_tokens_are_checked_without_interceptors_of_the_server() -> None:
    health = Health(())
    health.ready(True)
    settings = Settings(admin_token=TOKEN)  # type: ignore[arg-type]
    serve_here(ports(settings, health), nothing)
    async with served() as (_, channel):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        names: Any = channel.unary_unary("/grpc.health.v1.Health/List")

        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == 1
        code, _ = await code_and_trailers(names(b""))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        code, _ = await code_and_trailers(names(b"", metadata=BEARER))
        assert code is grpc.StatusCode.UNIMPLEMENTED  # let in, and not offered


async def test_the_node_stops_before_the_server_cuts_calls_off() -> None:
    ended: list[str] = []
    settings = Settings(allow_unauthenticated=True)

    async def stop() -> None:
        ended.append("node")

    serve_here(ports(settings, Health(())), stop)
    async with served() as (server, _):
        await server.stop(None)
        assert ended == ["node"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "BRAID_ALLOW_UNAUTHENTICATED"),
        ({"admin_token": TOKEN, "admin_address": "127.0.0.1:1"}, "BRAID_ADMIN_ADDRESS"),
        ({"tls_certificate": "a.pem", "tls_key": "b.pem"}, "BRAID_TLS_"),
    ],
)
async def test_what_cannot_hold_on_ray_is_refused_in_one_line(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(StartupError, match=named):
        ports(Settings(**settings), Health(()))
