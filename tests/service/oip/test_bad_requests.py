"""What callers get wrong with shared memory, streams and versions; see tests/attack, too."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.clock import until
from tests.service.oip.conftest import SHM_KEY, ramp
from tests.service.server_process import ServerProcess

Request = service_pb2.ModelInferRequest
Tensor = Request.InferInputTensor
X = ramp(1).tobytes()


def x(**changes: Any) -> Any:
    return Tensor(**{"name": "x", "datatype": "FP32", "shape": [1, 3], **changes})


def request(*inputs: Any, raw: tuple[bytes, ...] = (X,), **fields: Any) -> Any:
    return Request(**{"model_name": "fp32", "inputs": inputs, "raw_input_contents": raw, **fields})


def typed(**contents: Any) -> Any:
    return service_pb2.InferTensorContents(**contents)


def whole(value: int) -> Any:
    return service_pb2.InferParameter(int64_param=value)


def text(value: str) -> Any:
    return service_pb2.InferParameter(string_param=value)


def region(name: str = "none", size: int = 12, offset: int = 0) -> dict[str, Any]:
    return {
        "shared_memory_region": text(name),
        "shared_memory_byte_size": whole(size),
        "shared_memory_offset": whole(offset),
    }


def output(name: str = "y", **parameters: Any) -> Any:
    return Request.InferRequestedOutputTensor(name=name, parameters=parameters)


def test_a_request_s_own_parameters_are_ignored(stub: Any) -> None:
    own = {"content_type": text("np"), "colour": whole(7)}
    good = request(
        x(parameters=own), outputs=[output(**own)], parameters={**own, "sequence_start": whole(0)}
    )
    assert stub.ModelInfer(good, timeout=120).outputs[0].name == "y"
    del good.raw_input_contents[:]
    good.inputs[0].contents.fp32_contents.extend([1, 2, 3])
    assert stub.ModelInfer(good, timeout=120).outputs[0].name == "y"


@pytest.fixture
def shared_object() -> Iterator[Path]:
    path = Path(f"/dev/shm{SHM_KEY}")
    path.write_bytes(X + bytes(12))
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("key", "offset", "size"),
    [
        ("{object}", 0, 0),
        ("{object}", 0, 25),
        ("{object}", 20, 12),
        ("{object}", 2**64 - 1, 2),
        ("{link}", 0, 12),
    ],
)
def test_only_objects_that_hold_the_region_are_registered(
    stub: Any, shared_object: Path, key: str, offset: int, size: int
) -> None:
    link = shared_object.with_name(f"{shared_object.name}_link")
    link.symlink_to("/etc/passwd")
    try:
        wanted = service_pb2.SystemSharedMemoryRegisterRequest(
            name="bad",
            key=key.format(object=shared_object.name, link=link.name),
            offset=offset,
            byte_size=size,
        )
        with pytest.raises(grpc.RpcError) as error:
            stub.SystemSharedMemoryRegister(wanted, timeout=120)
    finally:
        link.unlink()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT, error.value.details()


@pytest.fixture
def registered(stub: Any, shared_object: Path) -> Iterator[Path]:
    stub.SystemSharedMemoryRegister(
        service_pb2.SystemSharedMemoryRegisterRequest(
            name="r", key=f"/{shared_object.name}", byte_size=24
        )
    )
    yield shared_object
    stub.SystemSharedMemoryUnregister(service_pb2.SystemSharedMemoryUnregisterRequest(name="r"))


@pytest.mark.parametrize(
    "bad",
    [
        request(x(parameters=region("r", 12, offset=16)), raw=()),
        request(x(parameters=region("r", 25)), raw=()),
        request(x(parameters=region("r", 8)), raw=()),
        request(x(parameters=region("r")), raw=(X,)),
        request(x(parameters=region("r"), contents=typed(fp32_contents=[1, 2, 3])), raw=()),
        request(x(parameters=region("r", 12, offset=-4)), raw=()),
        request(x(), outputs=[output(**region("r", 12, offset=16))]),
        request(x(), outputs=[output(**region("r", 8))]),
    ],
)
def test_tensors_outside_their_region_are_refused(stub: Any, registered: Path, bad: Any) -> None:
    before = registered.read_bytes()
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(bad, timeout=120)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT, error.value.details()
    assert registered.read_bytes() == before


def test_a_region_is_registered_once_and_survives_its_object_s_shortening(
    stub: Any, registered: Path
) -> None:
    again = service_pb2.SystemSharedMemoryRegisterRequest(
        name="r", key=registered.name, byte_size=24
    )
    with pytest.raises(grpc.RpcError) as error:
        stub.SystemSharedMemoryRegister(again)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    os.truncate(registered, 4)
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(request(x(parameters=region("r")), raw=()), timeout=120)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "shortened" in (error.value.details() or "")


def test_unregistering_while_requests_run_is_safe(stub: Any, shared_object: Path) -> None:
    register = service_pb2.SystemSharedMemoryRegisterRequest(
        name="busy", key=shared_object.name, byte_size=24
    )
    unregister = service_pb2.SystemSharedMemoryUnregisterRequest(name="busy")
    wanted = request(
        x(parameters=region("busy")), raw=(), outputs=[output(**region("busy", 12, 12))]
    )
    outcomes: set[Any] = set()
    done = threading.Event()

    def load() -> None:
        while not done.is_set():
            try:
                stub.ModelInfer(wanted, timeout=120)
                outcomes.add("OK")
            except grpc.RpcError as error:
                outcomes.add(error.code())

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        stub.SystemSharedMemoryRegister(register)
        time.sleep(0.005)
        stub.SystemSharedMemoryUnregister(unregister)
    done.set()
    for thread in threads:
        thread.join()
    assert outcomes == {"OK", grpc.StatusCode.NOT_FOUND}
    assert shared_object.read_bytes() == X + (2 * ramp(1)).tobytes()


def test_clients_that_vanish_mid_stream_leave_nothing_behind(
    oip_server: ServerProcess, stub: Any
) -> None:
    def requests() -> Iterator[Any]:
        for index in range(50):
            yield Request(
                model_name="cnn",
                id=str(index),
                inputs=[Tensor(name="x", datatype="FP32", shape=[8, 3, 16, 16])],
                raw_input_contents=[bytes(4 * 8 * 3 * 16 * 16)],
            )

    for _ in range(5):
        with grpc.insecure_channel(oip_server.address) as channel:
            gone = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stream = gone.ModelStreamInfer(requests())
            next(stream)
    until(lambda: oip_server.metric("braid_queue_depth_requests", model="cnn") == 0)
    assert stub.ModelInfer(request(x()), timeout=120).outputs[0].name == "y"


def test_a_version_never_changes(
    oip_server: ServerProcess, stub: Any, model_files: dict[str, Path]
) -> None:
    def load(name: str, file: str) -> Any:
        content = service_pb2.ModelRepositoryParameter(bytes_param=model_files[file].read_bytes())
        return service_pb2.RepositoryModelLoadRequest(
            model_name=name, parameters={"file:1/model.onnx": content}
        )

    stub.RepositoryModelLoad(load("fixed", "fp32"), timeout=120)
    with pytest.raises(grpc.RpcError) as error:
        stub.RepositoryModelLoad(load("fixed", "two"), timeout=120)

    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "version 2" in (error.value.details() or "")
    assert list((oip_server.store / "uploads").iterdir()) == []
