import asyncio
from collections import Counter
from typing import Any

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.service.oip.conftest import ramp
from tests.service.server_process import ServerProcess


def tiny() -> Any:
    request = service_pb2.ModelInferRequest(
        model_name="fp32", raw_input_contents=[ramp(1).tobytes()]
    )
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    return request


# 1024 may wait, and as many may be open on one connection.
@pytest.mark.parametrize("requests", [1500, pytest.param(6000, marks=pytest.mark.ci)])
def test_a_flood_is_answered_or_refused_and_neighbours_are_served(
    oip_server: ServerProcess, requests: int
) -> None:
    outcomes: Counter[str] = Counter()
    unavailable: set[str] = set()
    flooding: list[bool] = []  # while a neighbour was answered

    async def send(stub: Any) -> None:
        try:
            await stub.ModelInfer(tiny())
            outcomes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            outcomes[error.code().name] += 1
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                unavailable.add(error.details() or "")

    async def neighbour() -> None:
        async with grpc.aio.insecure_channel(oip_server.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(3):
                assert (await stub.ServerReady(service_pb2.ServerReadyRequest())).ready
                flooding.append(outcomes.total() < requests)

    async def scenario() -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(oip_server.address, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            await asyncio.gather(neighbour(), *(send(stub) for _ in range(requests)))

    front = psutil.Process(oip_server.process.pid)
    before = front.memory_info().rss
    asyncio.run(scenario())

    assert sum(outcomes.values()) == requests
    assert set(outcomes) <= {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}, outcomes
    assert outcomes["OK"] > 0
    # Calls over the limit of one connection, begun before the client knew it: REFUSED_STREAM.
    assert all("RST_STREAM with error code 7" in reason for reason in unavailable), unavailable
    assert flooding[0], "a neighbour is answered meanwhile"
    assert len(flooding) == 3
    assert front.memory_info().rss - before < 300 << 20
    assert oip_server.metric("braid_queue_depth_requests", model="fp32") == 0
