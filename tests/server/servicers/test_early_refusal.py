from typing import Any

import grpc
import pytest

from braid.core.errors import QueueFull
from braid.server.models.serving_models import ResolvedModel
from braid.server.observability.metrics import Metrics
from braid.server.rpc.status import Handler
from braid.server.servicers.tensor_service import Methods


class Echo:
    """A service whose messages are noted when they are read."""

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.refusal: ResolvedModel | None = None

    def note(self, data: bytes) -> bytes:
        self.read.append(data)
        return data

    async def call(self, data: bytes, context: Any) -> bytes:
        return data

    def methods(self) -> Methods:
        handler: Handler = grpc.unary_unary_rpc_method_handler(self.call, self.note)
        handlers = {"Infer": handler, "Look": handler}
        return Methods("echo", handlers, ["Infer"], lambda: self.refusal)


async def test_inference_is_refused_unread_with_a_hint_and_everything_else_is_answered() -> None:
    echo, metrics = Echo(), Metrics()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((echo.methods(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer: Any = channel.unary_unary("/echo/Infer")
        look: Any = channel.unary_unary("/echo/Look")
        assert await infer(b"taken") == b"taken"
        echo.refusal = ResolvedModel(metrics.unknown, None, QueueFull("full", 0.25))

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await infer(b"x" * 1_000_000)
        assert await look(b"answered") == b"answered"
    await server.stop(0)

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "full"
    assert dict(refused.value.trailing_metadata() or ())["braid-retry-after-ms"] == "250"
    assert echo.read == [b"taken", b"answered"]
    assert metrics.unknown.statistics.fail.count == 1
