"""Every bad input gets the right status and a message that says what to do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from braid_client import InvalidArgument, ModelNotFound, ResourceExhausted
from braid_client.wire import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from tests.clock import until
from tests.service.server_process import ServerProcess

Tensor = inference_pb2.Tensor


@pytest.fixture
def channel(shared: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(shared.address) as made:
        yield made


def x_tensor(**changes: Any) -> Tensor:
    shape = changes.get("shape", [1, 3, 16, 16])
    fields = {
        "name": "x",
        "dtype": "FP32",
        "shape": shape,
        "data": bytes(4 * max(0, int(np.prod(shape)))),
    }
    return Tensor(**{**fields, **changes})


def infer(channel: grpc.Channel, *tensors: Tensor, **fields: Any) -> grpc.RpcError:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = inference_pb2.InferRequest(**{"model": "cnn", "inputs": tensors, **fields})
    with pytest.raises(grpc.RpcError) as refused:
        stub.Infer(request, timeout=120)
    error: grpc.RpcError = refused.value
    metadata: Any = error.trailing_metadata()
    assert any(key == "braid-request-id" for key, _ in metadata)
    return error


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([], ["missing", "x", "FP32[batch, 3, 16, 16]"]),
        ([x_tensor(name="z")], ["no input 'z'", "x"]),
        ([x_tensor(), x_tensor(name="")], ["say which input is meant", "x"]),
        ([x_tensor(), x_tensor()], ["twice"]),
        ([x_tensor(), x_tensor(name="extra")], ["no input 'extra'"]),
        ([x_tensor(dtype="INT8")], ["INT8", "FP32"]),
        ([x_tensor(dtype="FLOAT")], ["FLOAT", "FP32"]),
        ([x_tensor(shape=[3, 16, 16])], ["rank 3"]),
        ([x_tensor(shape=[1, 4, 16, 16])], ["axis 1 must be 3"]),
        ([x_tensor(shape=[0, 3, 16, 16])], ["at least 1"]),
        ([x_tensor(shape=[-1, 3, 16, 16])], ["at least 1"]),
        ([x_tensor(data=b"1234")], ["4 bytes", "3072"]),
    ],
)
def test_a_wrong_tensor_is_named(
    channel: grpc.Channel, tensors: list[Tensor], words: list[str]
) -> None:
    error = infer(channel, *tensors)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    for word in words:
        assert word in (error.details() or "")


def test_an_unknown_output_is_named(channel: grpc.Channel) -> None:
    error = infer(channel, x_tensor(), outputs=["nope"])

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "nope" in (error.details() or "")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "nobody"}, ["nobody", "braid models"]),
        ({"model": ""}, ["no model named ''"]),
        ({"version": "7"}, ["version '7'", "versions: 1"]),
        ({"version": "latest"}, ["version 'latest'"]),
        ({"version": "../1"}, ["version '../1'"]),
    ],
)
def test_an_unknown_model_or_version_is_not_found(
    channel: grpc.Channel, fields: dict[str, str], words: list[str]
) -> None:
    error = infer(channel, x_tensor(), **fields)

    assert error.code() is grpc.StatusCode.NOT_FOUND
    for word in words:
        assert word in (error.details() or "")


def test_a_message_over_the_limit_is_refused_and_the_server_goes_on(
    shared: ServerProcess, channel: grpc.Channel
) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    huge = inference_pb2.InferRequest(model="cnn", inputs=[x_tensor(data=bytes(80 << 20))])

    with pytest.raises(grpc.RpcError) as refused:
        stub.Infer(huge, timeout=120)

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with shared.client() as client:
        with pytest.raises(ResourceExhausted, match="raise BRAID_MAX_MESSAGE_BYTES on the server"):
            client.infer("cnn", {"x": np.zeros((80 << 20) // 4, np.float32)})
        client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)})


Parts = Callable[[], Iterator[admin_pb2.RegisterModelRequest]]


def header(name: str = "bad", **fields: Any) -> admin_pb2.RegisterModelRequest:
    return admin_pb2.RegisterModelRequest(header=admin_pb2.RegisterModelHeader(name=name, **fields))


def chunk(data: bytes) -> admin_pb2.RegisterModelRequest:
    return admin_pb2.RegisterModelRequest(chunk=data)


def footer(sha256: str) -> admin_pb2.RegisterModelRequest:
    return admin_pb2.RegisterModelRequest(footer=admin_pb2.RegisterModelFooter(sha256=sha256))


SHA = hashlib.sha256(b"data").hexdigest()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], ["empty"]),
        ([chunk(b"data")], ["header"]),
        ([header(), footer(SHA)], ["empty"]),
        ([header(), chunk(b"data")], ["footer"]),
        ([header(), chunk(b"data"), footer("0" * 64)], ["SHA-256", SHA]),
        ([header(), chunk(b"data"), footer("short")], ["64 hexadecimal"]),
        ([header(), header()], ["chunks and one footer"]),
        ([header(name="../etc/passwd")], ["model name"]),
        ([header(name="")], ["model name"]),
        ([header(name="a\nb")], ["model name"]),
        ([header(batch_sizes=[0])], ["batch sizes"]),
        ([header(batch_sizes=[-4])], ["batch sizes"]),
        ([header(batch_sizes=[1 << 30])], ["batch sizes"]),
        ([header(planner=admin_pb2.PlannerOptions(name="magic"))], ["no planner 'magic'"]),
    ],
)
def test_a_malformed_upload_is_refused_and_leaves_nothing(
    shared: ServerProcess,
    channel: grpc.Channel,
    parts: list[admin_pb2.RegisterModelRequest],
    words: list[str],
) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    jobs = len(stub.ListJobs(admin_pb2.ListJobsRequest(limit=1000)).jobs)

    with pytest.raises(grpc.RpcError) as refused:
        stub.RegisterModel(iter(parts), timeout=120)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for word in words:
        assert word in (refused.value.details() or "")
    assert list((shared.store / "uploads").iterdir()) == []
    assert len(stub.ListJobs(admin_pb2.ListJobsRequest(limit=1000)).jobs) == jobs


def test_an_upload_that_is_abandoned_leaves_nothing(
    shared: ServerProcess, channel: grpc.Channel
) -> None:
    def parts() -> Iterator[admin_pb2.RegisterModelRequest]:
        yield header()
        yield chunk(b"x" * 100_000)
        call.cancel()

    stub = admin_pb2_grpc.AdminServiceStub(channel)
    call = stub.RegisterModel.future(parts(), timeout=120)

    with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
        call.result()

    until(lambda: list((shared.store / "uploads").iterdir()) == [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x08\x07", ["ONNX"]),  # another message of protobuf
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


def test_a_file_that_cannot_be_a_model_is_refused_before_it_is_sent(
    shared: ServerProcess, tmp_path: Path
) -> None:
    passwords = tmp_path / "passwd"
    passwords.write_text("root:x:0:0:root:/root:/bin/bash\n" * 1000)

    with shared.client() as client:
        with pytest.raises(InvalidArgument, match="not a model: neither ONNX nor"):
            client.register("text", passwords)
        with pytest.raises(InvalidArgument, match="not a model: neither ONNX nor"):
            client.register("text", passwords.read_bytes())
        with pytest.raises(ModelNotFound):
            client.model("text")


def test_an_upload_over_the_limit_is_refused(server: ServerProcess) -> None:
    server._environment["BRAID_MAX_UPLOAD_BYTES"] = "1MiB"
    server.start()

    with server.client() as client, pytest.raises(Exception, match="BRAID_MAX_UPLOAD_BYTES"):
        client.register("large", b"\x08\x08:\xff\xff\xff\x7f" + bytes(3 << 20))

    assert list((server.store / "uploads").iterdir()) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.model("nobody"), "nobody"),
        (lambda c: c.delete("nobody"), "nobody"),
        (lambda c: c.schedule("cnn", batch=2), "batch size 2"),
        (lambda c: c.schedule("cnn", device="cuda:7"), "cuda:7"),
        (lambda c: c.cancel_job("nojob"), "nojob"),
        (lambda c: list(c.watch_job("nojob")), "nojob"),
    ],
)
def test_asking_for_what_is_not_there_is_not_found(
    shared: ServerProcess, call: Callable[[Any], Any], words: str
) -> None:
    with shared.client() as client, pytest.raises(Exception, match=words) as refused:
        call(client)
    assert "NotFound" in type(refused.value).__name__
