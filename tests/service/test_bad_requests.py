"""Bad uploads and large messages, and what the SDK makes of refusals; see tests/attack, too."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from braid_client import ResourceExhausted
from braid_client.wire import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from tests.clock import until
from tests.service.server_process import ServerProcess


@pytest.fixture
def channel(shared: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(shared.address) as made:
        yield made


def test_a_message_over_the_limit_is_refused_and_the_server_goes_on(
    shared: ServerProcess, channel: grpc.Channel
) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    x = inference_pb2.Tensor(name="x", dtype="FP32", shape=[1, 3, 16, 16], data=bytes(80 << 20))
    huge = inference_pb2.InferRequest(model="cnn", inputs=[x])

    with pytest.raises(grpc.RpcError) as refused:
        stub.Infer(huge, timeout=120)

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with shared.client() as client:
        with pytest.raises(ResourceExhausted, match="raise BRAID_MAX_MESSAGE_BYTES on the server"):
            client.infer("cnn", {"x": np.zeros((80 << 20) // 4, np.float32)})
        client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)})


def test_an_upload_that_is_abandoned_leaves_nothing(
    shared: ServerProcess, channel: grpc.Channel
) -> None:
    def parts() -> Iterator[admin_pb2.RegisterModelRequest]:
        header = admin_pb2.RegisterModelHeader(name="bad")
        yield admin_pb2.RegisterModelRequest(header=header)
        yield admin_pb2.RegisterModelRequest(chunk=b"x" * 100_000)
        call.cancel()

    stub = admin_pb2_grpc.AdminServiceStub(channel)
    call = stub.RegisterModel.future(parts(), timeout=120)

    with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
        call.result()

    until(lambda: list((shared.store / "uploads").iterdir()) == [])


def test_shared_memory_is_off_unless_enabled(channel: grpc.Channel) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for call, message in (
        (stub.SystemSharedMemoryStatus, service_pb2.SystemSharedMemoryStatusRequest()),
        (stub.SystemSharedMemoryRegister, service_pb2.SystemSharedMemoryRegisterRequest()),
        (stub.SystemSharedMemoryUnregister, service_pb2.SystemSharedMemoryUnregisterRequest()),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call(message, timeout=120)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    metadata = stub.ServerMetadata(service_pb2.ServerMetadataRequest())
    assert "system_shared_memory" not in metadata.extensions


@pytest.mark.parametrize(
    ("content", "words"),
    [
        # another message of protobuf
        pytest.param(b"\x08\x07", ["ONNX"], marks=pytest.mark.ci),
        (None, ["ONNX"]),  # the model, cut in half
    ],
)
def test_a_file_that_is_no_model_fails_its_job_only(
    shared: ServerProcess, models: dict[str, Path], content: bytes | None, words: list[str]
) -> None:
    whole = models["cnn"].read_bytes()
    data = content if content is not None else whole[: len(whole) // 2]

    with shared.client() as client:
        with pytest.raises(Exception, match="fail") as failed:
            client.register("broken", data, wait=True)
        with pytest.raises(Exception, match="could not be imported"):
            client.infer("broken", {"x": np.zeros((1, 3, 16, 16), np.float32)})
        assert client.model("broken").state.name == "FAILED"
        client.delete("broken")
        client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)})

    for word in words:
        assert word in str(failed.value)
    assert list((shared.store / "uploads").iterdir()) == []
