"""Clients that bring messages of their own: server reflection, and kserve's where it is at hand."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.service.oip.conftest import ramp
from tests.service.server_process import ServerProcess

SERVICE = "inference.GRPCInferenceService"


def test_a_client_that_knows_only_reflection_infers(oip_server: ServerProcess) -> None:
    with grpc.insecure_channel(oip_server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        pool = descriptor_pool.DescriptorPool(database)
        methods = pool.FindServiceByName(SERVICE).methods_by_name
        assert len(methods) == 20
        method = methods["ModelInfer"]
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        call = channel.unary_unary(
            f"/{SERVICE}/{method.name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        given: Any = request(model_name="fp32", raw_input_contents=[ramp(2).tobytes()])
        given.inputs.add(name="x", datatype="FP32", shape=[2, 3])

        answer: Any = call(given, timeout=20)

    doubled = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 3)
    np.testing.assert_array_equal(doubled, 2 * ramp(2))


def test_health_knows_the_service(oip_server: ServerProcess) -> None:
    with grpc.insecure_channel(oip_server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=20)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


KSERVE = """
import asyncio, sys, numpy as np
from kserve import InferInput, InferRequest, InferenceGRPCClient

async def main():
    async with InferenceGRPCClient(sys.argv[1]) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("fp32") and not await client.is_model_ready("nobody")
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        for raw in (True, False):
            given = InferInput("x", [2, 3], "FP32")
            given.set_data_from_numpy(x, binary_data=raw)
            answer = await client.infer(InferRequest("fp32", [given], request_id="k"))
            assert answer.id == "k" and answer.model_name == "fp32"
            np.testing.assert_array_equal(answer.outputs[0].as_numpy(), 2 * x)
asyncio.run(main())
print("kserve is content")
"""


@pytest.mark.skipif(
    "BRAID_KSERVE_PYTHON" not in os.environ,
    reason="BRAID_KSERVE_PYTHON names no python that has kserve; it cannot share ours, since its "
    "copy of the protocol collides with tritonclient's",
)
def test_the_client_of_kserve_works(oip_server: ServerProcess) -> None:
    done = subprocess.run(
        [os.environ["BRAID_KSERVE_PYTHON"], "-c", KSERVE, oip_server.address],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "kserve is content" in done.stdout, done.stderr
