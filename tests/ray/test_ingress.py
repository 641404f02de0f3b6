"""Both protocols through the ingress of each machine, by clients that know nothing of Ray."""

import contextlib
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from braid_client import Client, InferRequest
from tests.models.small import small_cnn
from tests.ray.cluster import Cluster

pytestmark = pytest.mark.ray

ROWS = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def model(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that all nodes serve, registered through one of them."""
    file = small_cnn(tmp_path_factory.mktemp("models") / "cnn.onnx")
    with cluster.client(1) as client:
        client.register("cnn", file, batch_sizes=[1, 4], planner="sequential", wait=True)
    cluster.await_model("cnn")
    return "cnn"


@pytest.fixture(params=[0, 1, 2])
def client(request: pytest.FixtureRequest, cluster: Cluster, model: str) -> Iterator[Client]:
    with cluster.client(request.param) as client:
        yield client


@pytest.fixture
def address(cluster: Cluster, model: str) -> str:
    """The ingress of a machine that is not the head."""
    return cluster.machines[2].address


def test_each_ingress_answers_and_streams(client: Client, model: str) -> None:
    result = client.infer(model, {"x": ROWS})
    streamed = [each.unwrap() for each in client.infer_stream([InferRequest(model, ROWS)] * 5)]

    assert len(streamed) == 5
    for each in streamed:
        np.testing.assert_allclose(each.outputs["y"], result.outputs["y"], atol=1e-4)


def test_errors_have_status_words_and_trailers(address: str, model: str) -> None:
    with grpc.insecure_channel(address) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        unknown: Any
        with pytest.raises(grpc.RpcError) as unknown:
            infer(service_pb2.ModelInferRequest(model_name="nobody"), timeout=30)
        with pytest.raises(grpc.RpcError) as wrong:
            infer(service_pb2.ModelInferRequest(model_name=model), timeout=30)

    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert "nobody" in unknown.value.details()
    assert len(dict(unknown.value.trailing_metadata())["braid-request-id"]) == 16
    assert wrong.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_refusal_says_when_to_try_again(cluster: Cluster, model: str) -> None:
    """A stream of more than may wait: ``BRAID_MAX_QUEUE_REQUESTS`` of the cluster."""
    address = cluster.machines[0].address
    hints: SimpleQueue[str] = SimpleQueue()

    def ended(call: Any) -> None:
        if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            hints.put(dict(call.trailing_metadata())["braid-retry-after-ms"])

    many = np.zeros((64, 3, 16, 16), np.float32)
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[many.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=many.shape)
    with grpc.insecure_channel(address) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        calls = [infer.future(request, timeout=60) for _ in range(300)]
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                call.result()
            ended(call)

    assert not hints.empty()
    assert int(hints.get()) > 0


def test_health_and_reflection_are_braids(address: str, model: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=30).status == 1
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        [answer] = stub.ServerReflectionInfo(iter([request]), timeout=30)

    names = {each.name for each in answer.list_services_response.service}
    assert {"inference.GRPCInferenceService", "braid.v1.InferenceService"} <= names
    assert not any("ray" in name for name in names)


def test_all_machines_are_nodes(client: Client) -> None:
    assert len(client.nodes()) == 3
