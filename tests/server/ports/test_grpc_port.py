"""Which server takes the calls of the main gRPC port."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from braid.server.inference.call_memory import CallMemory
from braid.server.limits import memory_limits
from braid.server.observability.tracing import Sampling
from braid.server.ports.grpc_port import GrpcPorts
from braid.server.settings import Settings


@pytest.mark.parametrize(
    ("host", "transport", "in_loop"),
    [
        ("127.0.0.1", "auto", True),
        ("::1", "auto", True),
        ("0.0.0.0", "auto", False),
        ("10.0.0.1", "auto", False),
        ("0.0.0.0", "asyncio", True),
        ("127.0.0.1", "grpcio", False),
    ],
)
async def test_strangers_meet_grpcs_own_library_unless_the_operator_trusts_them(
    tmp_path: Path, host: str, transport: str, in_loop: bool
) -> None:
    told: list[grpc.aio.Server] = []
    settings = Settings.model_validate(
        {
            "store": tmp_path,
            "host": host,
            "grpc_transport": transport,
            "allow_unauthenticated": True,
        }
    )

    GrpcPorts(settings, told.append, Sampling(), CallMemory(memory_limits(settings)))

    assert [type(each).__module__ == "braid.server.http2.server" for each in told] == [in_loop]
