"""Every public method of tritonclient's InferenceServerClient against a server.

The table below names each method once; a method that a newer client adds, sync or aio, fails the
test.
"""

import inspect
import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.service.oip.conftest import SHM_KEY, ramp
from tests.service.server_process import ServerProcess

UNTESTED = {"close", "plugin", "register_plugin", "unregister_plugin"}  # speak to no server


def methods(client: type) -> set[str]:
    found = inspect.getmembers(client, callable)
    return {name for name, _ in found if not name.startswith("_")} - UNTESTED


def tensor(x: np.ndarray, name: str = "x", datatype: str = "FP32") -> triton.InferInput:
    made = triton.InferInput(name, list(x.shape), datatype)
    made.set_data_from_numpy(x)
    return made


def refused(call: Callable[[], object], status: str) -> None:
    with pytest.raises(InferenceServerException) as error:
        call()
    assert error.value.status() == f"StatusCode.{status}", error.value


@pytest.fixture
def client(oip_server: ServerProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(oip_server.address) as made:
        yield made


Client: TypeAlias = Any


def is_server_live(client: Client, _: Path) -> None:
    assert client.is_server_live()


def is_server_ready(client: Client, _: Path) -> None:
    assert client.is_server_ready()


def is_model_ready(client: Client, _: Path) -> None:
    assert client.is_model_ready("cnn")
    assert client.is_model_ready("cnn", "1")
    assert not client.is_model_ready("cnn", "2")
    assert not client.is_model_ready("nobody")


def get_server_metadata(client: Client, _: Path) -> None:
    found = client.get_server_metadata()
    assert found.name == "braid"
    assert set(found.extensions) == {
        "classification",
        "logging",
        "model_configuration",
        "model_repository",
        "schedule_policy",
        "statistics",
        "system_shared_memory",
        "trace",
    }


def get_model_metadata(client: Client, _: Path) -> None:
    found = client.get_model_metadata("two", as_json=True)
    assert found["versions"] == ["1"]
    assert found["inputs"] == [
        {"name": name, "datatype": "FP32", "shape": ["-1", "3"]} for name in ("a", "b")
    ]
    assert [each["name"] for each in found["outputs"]] == ["minus", "plus"]
    refused(lambda: client.get_model_metadata("nobody"), "NOT_FOUND")


def get_model_config(client: Client, _: Path) -> None:
    found = client.get_model_config("cnn").config
    assert found.max_batch_size == 4
    assert list(found.input[0].dims) == [3, 16, 16]
    assert list(found.dynamic_batching.preferred_batch_size) == [1, 4]
    refused(lambda: client.get_model_config("cnn", "9"), "NOT_FOUND")


def get_model_repository_index(client: Client, _: Path) -> None:
    states = {each.name: each.state for each in client.get_model_repository_index().models}
    assert states["cnn"] == "READY"


def load_model(client: Client, onnx_file: Path) -> None:
    config = json.dumps(
        {
            "max_batch_size": 2,
            "platform": "onnxruntime_onnx",
            "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
            "version_policy": {"latest": {"num_versions": 1}},
        }
    )
    files = {"file:3/model.onnx": onnx_file.read_bytes()}
    client.load_model("loaded", config=config, files=files)
    assert client.is_model_ready("loaded", "3")
    assert client.get_model_config("loaded").config.max_batch_size == 2
    client.load_model("loaded", config=config, files=files)  # the same again
    client.load_model("loaded")


def unload_model(client: Client, _: Path) -> None:
    client.unload_model("loaded")
    assert not client.is_model_ready("loaded")
    index = {each.name: each for each in client.get_model_repository_index().models}
    assert (index["loaded"].state, index["loaded"].reason) == ("UNAVAILABLE", "unloaded")
    refused(lambda: client.infer("loaded", [tensor(ramp(1))]), "FAILED_PRECONDITION")
    client.unload_model("loaded", unload_dependents=True)
    client.load_model("loaded")
    assert client.is_model_ready("loaded")
    refused(lambda: client.unload_model("nobody"), "NOT_FOUND")


def get_inference_statistics(client: Client, _: Path) -> None:
    def seen() -> Any:
        return client.get_inference_statistics("two", "1").model_stats[0]

    before = seen()
    client.infer("two", [tensor(ramp(3), "a"), tensor(ramp(3), "b")])
    with pytest.raises(InferenceServerException):
        client.infer("two", [tensor(ramp(3), "a")])
    after = seen()
    assert after.inference_count - before.inference_count == 3
    assert after.execution_count - before.execution_count == 1
    stats = after.inference_stats
    assert stats.success.count - before.inference_stats.success.count == 1
    assert stats.fail.count - before.inference_stats.fail.count == 1
    assert stats.success.ns > stats.compute_infer.ns > 0
    by_size = {each.batch_size: each.compute_infer.count for each in after.batch_stats}
    assert sum(by_size.values()) == after.execution_count
    assert {each.name for each in client.get_inference_statistics().model_stats} >= {"cnn", "two"}


def get_trace_settings(client: Client, _: Path) -> None:
    found = client.get_trace_settings().settings
    assert {name: list(each.value) for name, each in found.items()} == {
        "trace_level": ["OFF"], "trace_rate": ["1"], "trace_count": ["-1"],
        "trace_mode": ["opentelemetry"],
    }  # fmt: skip


def update_trace_settings(client: Client, _: Path) -> None:
    client.update_trace_settings()
    wanted = {"trace_level": "TIMESTAMPS"}
    refused(lambda: client.update_trace_settings(settings=wanted), "FAILED_PRECONDITION")
    refused(lambda: client.update_trace_settings("cnn", wanted), "UNIMPLEMENTED")


def get_log_settings(client: Client, _: Path) -> None:
    assert client.get_log_settings().settings["log_error"].bool_param


def update_log_settings(client: Client, _: Path) -> None:
    client.update_log_settings({"log_info": None})
    changed = client.update_log_settings({"log_verbose_level": 0, "log_info": False})
    assert not changed.settings["log_info"].bool_param
    assert changed.settings["log_warning"].bool_param
    refused(lambda: client.update_log_settings({"log_warning": True, "log_error": False}),
            "INVALID_ARGUMENT")  # fmt: skip
    refused(lambda: client.update_log_settings({"log_file": "/tmp/x"}), "INVALID_ARGUMENT")
    back = client.update_log_settings({"log_verbose_level": 1, "log_info": True})
    assert back.settings["log_verbose_level"].uint32_param == 1


def register_system_shared_memory(client: Client, _: Path) -> None:
    handle = shm.create_shared_memory_region("region", SHM_KEY, 24)
    try:
        client.register_system_shared_memory("region", SHM_KEY, 24)
        shm.set_shared_memory_region(handle, [ramp(1)])
        x, y = triton.InferInput("x", [1, 3], "FP32"), triton.InferRequestedOutput("y")
        x.set_shared_memory("region", 12)
        y.set_shared_memory("region", 12, offset=12)
        result = client.infer("fp32", [x], outputs=[y])
        placed = result.get_output("y").parameters
        assert placed["shared_memory_byte_size"].int64_param == 12
        found = shm.get_contents_as_numpy(handle, np.float32, [1, 3], offset=12)
        np.testing.assert_array_equal(found, 2 * ramp(1))
        del found
    finally:
        shm.destroy_shared_memory_region(handle)


def get_system_shared_memory_status(client: Client, _: Path) -> None:
    region = client.get_system_shared_memory_status().regions["region"]
    assert (region.key, region.byte_size) == (SHM_KEY, 24)
    refused(lambda: client.get_system_shared_memory_status("nobody"), "NOT_FOUND")


def unregister_system_shared_memory(client: Client, _: Path) -> None:
    client.unregister_system_shared_memory("region")
    client.unregister_system_shared_memory("region")
    client.unregister_system_shared_memory()
    assert not client.get_system_shared_memory_status().regions


def get_cuda_shared_memory_status(client: Client, _: Path) -> None:
    refused(client.get_cuda_shared_memory_status, "UNIMPLEMENTED")


def register_cuda_shared_memory(client: Client, _: Path) -> None:
    refused(lambda: client.register_cuda_shared_memory("a", b"", 0, 1), "UNIMPLEMENTED")


def unregister_cuda_shared_memory(client: Client, _: Path) -> None:
    refused(client.unregister_cuda_shared_memory, "UNIMPLEMENTED")


def infer(client: Client, _: Path) -> None:
    inputs = [tensor(2 * ramp(2), "a"), tensor(ramp(2), "b")]
    result = client.infer(
        "two", inputs, request_id="me", priority=1, timeout=5_000_000, parameters={"mine": "x"}
    )
    assert result.get_response().id == "me"
    np.testing.assert_array_equal(result.as_numpy("minus"), ramp(2))
    np.testing.assert_array_equal(result.as_numpy("plus"), 3 * ramp(2))
    only = client.infer("two", inputs, outputs=[triton.InferRequestedOutput("plus")])
    assert [each.name for each in only.get_response().outputs] == ["plus"]


def async_infer(client: Client, _: Path) -> None:
    answered: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.async_infer(
        "fp32", [tensor(ramp(1))], lambda result, error: answered.put((result, error))
    )
    result, error = answered.get(timeout=120)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("y"), 2 * ramp(1))


def start_stream(client: Client, _: Path) -> None:
    answered: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answered.put((result, error)))
    for index in range(20):
        name = "nobody" if index == 7 else "fp32"
        x = ramp(1 + index % 5) + index
        client.async_stream_infer(
            name, [tensor(x)], request_id=str(index), enable_empty_final_response=True
        )
    for index in range(20):  # in the order of the requests
        result, error = answered.get(timeout=120)
        if index == 7:
            assert "nobody" in error.message()
            continue
        response = result.get_response()
        assert response.id == str(index)
        assert response.parameters["triton_final_response"].bool_param
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * (ramp(1 + index % 5) + index))


def stop_stream(client: Client, _: Path) -> None:
    client.stop_stream()
    client.stop_stream()


METHODS: list[Callable[[Client, Path], None]] = [
    is_server_live, is_server_ready, is_model_ready, get_server_metadata, get_model_metadata,
    get_model_config, get_model_repository_index, load_model, unload_model,
    get_inference_statistics, get_trace_settings, update_trace_settings, get_log_settings,
    update_log_settings, register_system_shared_memory, get_system_shared_memory_status,
    unregister_system_shared_memory, get_cuda_shared_memory_status, register_cuda_shared_memory,
    unregister_cuda_shared_memory, infer, async_infer, start_stream, stop_stream,
]  # fmt: skip
"""In this order: later ones use what earlier ones made."""


def test_every_method_of_the_client_works(client: Client, model_files: dict[str, Path]) -> None:
    names = {method.__name__ for method in METHODS}
    assert names | {"async_stream_infer"} == methods(triton.InferenceServerClient)
    assert methods(triton_aio.InferenceServerClient) <= names | {"stream_infer"}
    for method in METHODS:
        method(client, model_files["fp32"])
