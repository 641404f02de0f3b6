"""Clients that bring messages of their own: server reflection, kserve's and Triton's."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests import ROOT
from tests.service.oip.conftest import ramp
from tests.service.server_process import ServerProcess

SERVICE = "inference.GRPCInferenceService"


def test_a_client_that_knows_only_reflection_infers(oip_server: ServerProcess) -> None:
    with grpc.insecure_channel(oip_server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICE, "braid.v1.InferenceService"} <= {*database.get_services()}
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

        answer: Any = call(given, timeout=120)

    doubled = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 3)
    np.testing.assert_array_equal(doubled, 2 * ramp(2))


TOGETHER = """
import sys, numpy as np, braid_client

x = np.arange(6, dtype=np.float32).reshape(2, 3)
with braid_client.Client(sys.argv[1]) as ours:
    np.testing.assert_array_equal(ours.infer("fp32", {"x": x}).outputs["y"], 2 * x)
"""
TRITON = """
from tritonclient.grpc import InferenceServerClient, InferInput

given = InferInput("x", [2, 3], "FP32")
given.set_data_from_numpy(x)
with InferenceServerClient(sys.argv[1]) as client:
    np.testing.assert_array_equal(client.infer("fp32", [given]).as_numpy("y"), 2 * x)
"""
KSERVE = """
import asyncio
from kserve import InferInput, InferRequest, InferenceGRPCClient, InferenceRESTClient, RESTConfig

async def over_rest():
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    url = "http://" + sys.argv[2]
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, "fp32")
    for raw in (True, False):
        given = InferInput("x", [2, 3], "FP32")
        given.set_data_from_numpy(x, binary_data=raw)
        asked = InferRequest("fp32", [given], request_id="k")
        answer = await client.infer(url, asked, model_name="fp32")
        assert answer.id == "k" and answer.model_name == "fp32"
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), 2 * x)
        words = InferInput("x", [1, 2], "BYTES")
        words.set_data_from_numpy(np.array([["a", "Zürich"]], object), binary_data=raw)
        answer = await client.infer(url, InferRequest("greeting", [words]), model_name="greeting")
        found = [str(each, "utf-8") if isinstance(each, bytes) else each
                 for each in answer.outputs[0].as_numpy().ravel()]
        assert found == ["hello a!", "hello Zürich!"], found

async def main():
    await over_rest()
    async with InferenceGRPCClient(sys.argv[1]) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("fp32") and not await client.is_model_ready("nobody")
        for raw in (True, False):
            given = InferInput("x", [2, 3], "FP32")
            given.set_data_from_numpy(x, binary_data=raw)
            answer = await client.infer(InferRequest("fp32", [given], request_id="k"))
            assert answer.id == "k" and answer.model_name == "fp32"
            np.testing.assert_array_equal(answer.outputs[0].as_numpy(), 2 * x)
asyncio.run(main())
"""


@pytest.mark.slow
def test_the_sdk_works_beside_the_newest_clients_of_kserve_and_triton(
    oip_server: ServerProcess, tmp_path: Path
) -> None:
    """An application's environment: the SDK joins it and changes no version in it.

    Each program loads the SDK and one of the two others, whose copies of the protocol collide.
    """
    venv.create(tmp_path / "application", symlinks=True)
    python = str(tmp_path / "application/bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    packages = ["kserve", "tritonclient[grpc]"]
    done = subprocess.run([*pip, "install", "-q", *packages], cwd=tmp_path, env=elsewhere())
    if done.returncode != 0:
        pytest.skip("no index offers kserve and tritonclient")
    shutil.copytree(ROOT / "client", tmp_path / "client")
    before = run(tmp_path, *pip, "freeze")

    run(tmp_path, *pip, "install", "-q", str(tmp_path / "client"))

    after = run(tmp_path, *pip, "freeze")
    assert [line for line in before.splitlines() if line not in after.splitlines()] == []
    run(tmp_path, *pip, "check")
    for others in (TRITON, KSERVE):
        program = TOGETHER + others
        run(tmp_path, python, "-c", program, oip_server.address, oip_server.http_address)


def elsewhere() -> dict[str, str]:
    """Environment without the repository, whose own metadata pip would find."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=elsewhere(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
