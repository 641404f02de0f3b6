"""Answers that a client does not read must not fill the memory of the front end.

One connection, whose far end stops reading, carries streams of both protocols and single calls;
every answer has 4 MiB. Another client's requests are answered meanwhile. The script ends when the
requests of the first client stand still, which is counted in answers of the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2, service_pb2_grpc

from braid_client.aio import AsyncClient
from braid_client.wire import inference_pb2, inference_pb2_grpc
from campaigns.regressions.scripts import FaultyServer
from tests.models.small import identity, row_sums
from tests.service.unread_connections import unread_connections

COLUMNS = 1 << 18
ROWS = 4
STREAMS = 15  # of each protocol
REQUESTS = 64  # of each stream
SINGLE_CALLS = 300

MAX_GROWTH_BYTES = 1 << 30
"""Twice what one connection may hold, and room for what an allocator keeps."""
STILL_ANSWERS = 100
"""The first client's requests stand still if none ended during so many of the second."""

FEW = np.ones((ROWS, 3), np.float32)


def check(server: FaultyServer) -> None:
    """Raise AssertionError if the front end grows beyond its limits."""
    server.set(BRAID_BATCH_WAIT_MS="0")
    server.start()
    wide, narrow = (
        row_sums(server.folder / "wide.onnx", COLUMNS),
        identity(server.folder / "narrow.onnx"),
    )
    server.import_ahead(wide, narrow)
    with server.client() as client:
        for name, path in (("wide", wide), ("narrow", narrow)):
            client.register(name, path, batch_sizes=[ROWS], planner="sequential", wait=True)
    asyncio.run(flood(server))


async def flood(server: FaultyServer) -> None:
    """Ask much and read nothing, and watch the front end from a second connection."""
    front = psutil.Process(server.process.pid)
    before = front.memory_info().rss
    async with unread_connections(server.address) as address:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            calls = [asyncio.ensure_future(call) for call in unread_calls(channel)]
            try:
                await watch(server, front, before)
            finally:
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)


async def watch(server: FaultyServer, front: psutil.Process, before: int) -> None:
    """Return when the unread calls stand still, the front end having stayed small."""
    ended, still = -1.0, 0
    async with AsyncClient(server.address) as client:
        while still < STILL_ANSWERS or ended < STREAMS:
            await client.infer("narrow", {"x": FEW}, timeout_s=60)
            now = await asyncio.to_thread(
                server.metric, "braid_request_compute_seconds_count", model="wide"
            )
            still, ended = (still + 1 if now == ended else 0), now
            grown = front.memory_info().rss - before
            assert grown < MAX_GROWTH_BYTES, f"{grown >> 20} MiB for {ended:g} answers unread"


def unread_calls(channel: grpc.aio.Channel) -> list[Awaitable[Any]]:
    """Calls of every kind that carries tensors."""
    braid: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    triton = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=FEW.shape, data=FEW.tobytes())
    own = inference_pb2.InferRequest(model="wide", inputs=[tensor])
    other = service_pb2.ModelInferRequest(model_name="wide", raw_input_contents=[FEW.tobytes()])
    other.inputs.add(name="x", datatype="FP32", shape=FEW.shape)
    return [
        *(send(braid.InferStream(), own) for _ in range(STREAMS)),
        *(send(triton.ModelStreamInfer(), other) for _ in range(STREAMS)),
        *(
            wait_for(method(request))
            for method, request in ((braid.Infer, own), (triton.ModelInfer, other))
            for _ in range(SINGLE_CALLS)
        ),
    ]


async def send(call: Any, request: Any) -> None:
    """Send a stream's requests; its answers are left where they are."""
    for _ in range(REQUESTS):
        await call.write(request)
    await call.wait_for_connection()
    await asyncio.Event().wait()


async def wait_for(call: Any) -> None:
    """One answer that will not come."""
    await call
