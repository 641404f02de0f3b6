"""A server that may hold little for its callers: who reads gets everything, who does not waits."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from braid_client.aio import AsyncClient
from braid_client.wire import inference_pb2, inference_pb2_grpc
from tests.models.small import row_sums
from tests.service.server_process import ServerProcess
from tests.service.unread_connections import unread_connections

MIB = 1 << 20
COLUMNS = 1 << 16  # an answer of one row has 256 KiB
CALLS_BYTES = 4 * MIB
CONNECTION_BYTES = 3 * MIB
NEIGHBOUR_BYTES = 5 * COLUMNS  # its answer, of which the server may not know yet that it was read
REQUESTS = 40


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Has the model ``wide``, and 3 MiB for a connection, a quarter for a stream, 4 in all."""
    folder = tmp_path_factory.mktemp("small")
    with ServerProcess(
        folder / "store",
        BRAID_CONNECTION_MEMORY_BYTES="3MiB",
        BRAID_CALLS_MEMORY_BYTES=str(CALLS_BYTES),
    ).start() as server:
        yield server.register({"wide": row_sums(folder / "wide.onnx", COLUMNS)}, (1, 4))


def row(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((1, 3), number, np.float32)


def own_request(number: int) -> inference_pb2.InferRequest:
    tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=(1, 3), data=row(number).tobytes())
    return inference_pb2.InferRequest(model="wide", request_id=str(number), inputs=[tensor])


def other_request(number: int) -> Any:
    request = service_pb2.ModelInferRequest(
        model_name="wide", id=str(number), raw_input_contents=[row(number).tobytes()]
    )
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    return request


def own_stub(channel: grpc.aio.Channel) -> Any:
    return inference_pb2_grpc.InferenceServiceStub(channel)


def other_stub(channel: grpc.aio.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def first_value(data: bytes) -> float:
    assert len(data) == 4 * COLUMNS
    return float(np.frombuffer(data, np.float32, count=1)[0])


async def test_who_reads_late_gets_every_answer(small: ServerProcess) -> None:
    async def requests(make: Any) -> Any:
        for number in range(REQUESTS):
            yield make(number)

    async with grpc.aio.insecure_channel(small.address) as channel:
        own = own_stub(channel).InferStream(requests(own_request))
        other = other_stub(channel).ModelStreamInfer(requests(other_request))
        singles = [own_stub(channel).Infer(own_request(number)) for number in range(REQUESTS)]
        seen = {}
        async for answer in own:
            seen[int(answer.request_id)] = first_value(answer.response.outputs[0].data)
        in_order = []
        async for answer in other:
            response = answer.infer_response
            in_order.append((response.id, first_value(response.raw_output_contents[0])))
        single = [first_value((await call).outputs[0].data) for call in singles]

    assert seen == {number: 3.0 * number for number in range(REQUESTS)}
    assert in_order == [(str(number), 3.0 * number) for number in range(REQUESTS)]
    assert single == [3.0 * number for number in range(REQUESTS)]
    await nothing_is_held(small)


async def test_who_does_not_read_stands_still_and_others_are_answered(small: ServerProcess) -> None:
    async with unread_connections(small.address) as address:
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            streams = [own_stub(channel).InferStream() for _ in range(6)]
            streams += [other_stub(channel).ModelStreamInfer() for _ in range(6)]
            for number in range(REQUESTS):
                for stream in streams[:6]:
                    await stream.write(own_request(number))
                for stream in streams[6:]:
                    await stream.write(other_request(number))
            singles = [own_stub(channel).Infer(own_request(number)) for number in range(REQUESTS)]
            async with AsyncClient(small.address) as neighbour:
                unread, still = -1.0, 0
                while still < 20 or unread < 2 * MIB:
                    result = await neighbour.infer("wide", {"x": row(still)}, timeout_s=120)
                    assert result.outputs["y"][0, 0] == 3 * still
                    now = await metric(small, "braid_unread_answer_bytes")
                    still, unread = (still + 1 if now == unread else 0), now
                    assert now <= CONNECTION_BYTES + NEIGHBOUR_BYTES
                    held = await metric(small, "braid_calls_memory_bytes")
                    assert held <= CALLS_BYTES
            for call in (*streams, *singles):
                call.cancel()
    await nothing_is_held(small)
    assert "Traceback" not in small.log


async def metric(server: ServerProcess, name: str) -> float:
    return await asyncio.to_thread(server.metric, name)


async def nothing_is_held(server: ServerProcess) -> None:
    """Returns when the server has seen that its callers are gone."""
    for name in ("braid_unread_answer_bytes", "braid_calls_memory_bytes"):
        while await metric(server, name):
            pass  # each look takes a round trip
