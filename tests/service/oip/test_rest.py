"""The protocol over HTTP: Triton's own client, sync and aio, and the same answers as over gRPC."""

import inspect
import json
import math
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from braid.core.strings import length_prefixed
from braid.server.servicers.rest.openapi import document
from braid.server.servicers.rest.operations import OPERATIONS
from tests.service.oip.conftest import SHM_KEY, ramp
from tests.service.oip.rest import Answer, call, inputs, tensor
from tests.service.server_process import ServerProcess

DTYPES: dict[str, Any] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT32": np.int32,
}
INFER = "/v2/models/fp32/infer"


@pytest.fixture
def client(oip_server: ServerProcess) -> Iterator[http.InferenceServerClient]:
    with http.InferenceServerClient(oip_server.http_address) as made:
        yield made


@pytest.fixture
async def aio(oip_server: ServerProcess) -> AsyncIterator[http_aio.InferenceServerClient]:
    async with http_aio.InferenceServerClient(oip_server.http_address) as made:
        yield made


def given(x: np.ndarray, *, binary: bool = True, name: str = "x") -> http.InferInput:
    made = http.InferInput(name, list(x.shape), "FP32")
    made.set_data_from_numpy(x, binary_data=binary)
    return made


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("in_binary", [True, False])
@pytest.mark.parametrize("out_binary", [None, True, False])
def test_triton_client_infers(
    client: http.InferenceServerClient,
    in_binary: bool,
    out_binary: bool | None,
    compression: str | None,
) -> None:
    wanted = None
    if out_binary is not None:
        wanted = [http.InferRequestedOutput("y", binary_data=out_binary)]

    answer = client.infer(
        "fp32",
        [given(ramp(2), binary=in_binary)],
        outputs=wanted,
        request_id="mine",
        priority=3,
        timeout=60_000_000,
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )

    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * ramp(2))
    response = answer.get_response()
    assert (response["model_name"], response["model_version"]) == ("fp32", "1")
    assert response["id"] == "mine"


def test_triton_client_asks_for_everything_else(client: http.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("cnn", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "braid"
    metadata = client.get_model_metadata("fp32")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert client.get_model_config("fp32", "1")["input"][0]["dims"] == [3]
    client.infer("fp32", [given(ramp(1))])
    for found in (client.get_inference_statistics("fp32", "1"), client.get_inference_statistics()):
        assert sum(each["inference_count"] for each in found["model_stats"]) >= 1
    index = client.get_model_repository_index()
    assert {"name": "cnn", "version": "1", "state": "READY", "reason": ""} in index
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_log_settings()["log_info"] is True
    assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    with pytest.raises(InferenceServerException, match="CUDA shared memory is not offered"):
        client.get_cuda_shared_memory_status()


def test_every_method_of_triton_client_has_a_route() -> None:
    source = inspect.getsource(inspect.getmodule(http.InferenceServerClient))  # type: ignore[arg-type]
    asked = {
        line.split('"')[1].replace("{}", "_")
        for line in source.splitlines()
        if "request_uri = " in line and '"v2' in line
    }
    routes = {each.path[1:].replace("{name}", "_").replace("{version}", "_") for each in OPERATIONS}

    assert len(asked) > 20
    assert asked - routes == set()


def test_a_load_brings_its_model(
    client: http.InferenceServerClient, model_files: dict[str, Path]
) -> None:
    client.load_model(
        "brought",
        config=json.dumps({"max_batch_size": 2}),
        files={"file:1/model.onnx": model_files["fp32"].read_bytes()},
    )

    answer = client.infer("brought", [given(ramp(2))])
    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * ramp(2))


def test_outputs_may_be_written_to_shared_memory(client: http.InferenceServerClient) -> None:
    import tritonclient.utils.shared_memory as shm

    x = ramp(2)
    region = shm.create_shared_memory_region("out", SHM_KEY, x.nbytes)
    try:
        shm.set_shared_memory_region(region, [x])
        client.register_system_shared_memory("out", SHM_KEY, x.nbytes)
        assert [each["name"] for each in client.get_system_shared_memory_status()] == ["out"]
        source = http.InferInput("x", [2, 3], "FP32")
        source.set_shared_memory("out", x.nbytes)
        wanted = http.InferRequestedOutput("y")
        wanted.set_shared_memory("out", x.nbytes)

        client.infer("fp32", [source], outputs=[wanted])

        np.testing.assert_array_equal(
            shm.get_contents_as_numpy(region, np.float32, [2, 3]), 2 * ramp(2)
        )
        client.unregister_system_shared_memory("out")
    finally:
        shm.destroy_shared_memory_region(region)


def test_parameters_of_other_servers_are_ignored(oip_server: ServerProcess) -> None:
    own = {"content_type": "np", "colour": [1, {"deep": True}], "headers": None, "large": 1 << 80}
    outputs = [{"name": "y", "parameters": own}]
    empty = {"id": None, "parameters": None, "outputs": None}  # as MLServer's types are dumped

    for body in (
        inputs(tensor(parameters=own), parameters=own, outputs=outputs),
        inputs(tensor(parameters=None), **empty),
    ):
        answer = call(oip_server, INFER, body)
        assert answer.status == 200, answer.body
        assert answer.json["outputs"][0]["data"] == [2, 4, 6]


async def test_triton_aio_client_infers(aio: http_aio.InferenceServerClient) -> None:
    assert await aio.is_server_ready()
    assert (await aio.get_model_metadata("fp32"))["versions"] == ["1"]
    for compression in (None, "gzip"):
        answer = await aio.infer(
            "fp32", [given(ramp(2))], response_compression_algorithm=compression
        )
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * ramp(2))
    with pytest.raises(InferenceServerException, match="no model named"):
        await aio.infer("nobody", [given(ramp(1))])


def test_the_document_names_every_route(oip_server: ServerProcess) -> None:
    shown = json.loads(oip_server.http("/openapi.json"))

    assert shown == json.loads(json.dumps(document(OPERATIONS)))
    routes = {(each.path, each.method.lower()) for each in OPERATIONS}
    described = {(path, method) for path, item in shown["paths"].items() for method in item}
    assert described == routes
    ids = [each["operationId"] for item in shown["paths"].values() for each in item.values()]
    assert len(ids) == len(set(ids))
    for path, method in sorted(described):  # each is answered by the protocol, none by the router
        at = path.replace("{name}", "nobody").replace("{version}", "1")
        answer = call(oip_server, at, b"x" if method == "post" else None)
        assert answer.json != {"error": "Not Found"}, path
        assert answer.status != 405, path


# Random requests: the same over HTTP and gRPC, bit by bit.


class Pair:
    """One request in the words of both doors."""

    def __init__(self, random_: random.Random, model: str, metadata: Any) -> None:
        self.rest: dict[str, Any] = {"id": "same", "parameters": {}, "inputs": [], "outputs": []}
        self.grpc = service_pb2.ModelInferRequest(model_name=model, id="same")
        self.binary = b""
        self._random = random_
        # Of the network, batch sizes differ in the last bit: four rows have one to run in.
        rows = 4 if model == "cnn" else random_.randint(1, 4)
        for spec in metadata.inputs:
            self._add_input(spec, rows)
        self.is_binary = random_.random() < 0.5
        if self.is_binary or random_.random() < 0.5:
            self.rest["parameters"]["binary_data_output"] = self.is_binary
        if priority := random_.choice([0, 1, 10]):
            self.rest["parameters"]["priority"] = priority
            self.grpc.parameters["priority"].int64_param = priority
        for spec in metadata.outputs:
            if random_.random() < 0.5:
                wanted: dict[str, Any] = {"name": spec.name}
                if random_.random() < 0.5:
                    wanted["parameters"] = {"binary_data": random_.random() < 0.5}
                self.rest["outputs"].append(wanted)
                self.grpc.outputs.add(name=spec.name)

    def _add_strings(self, spec: Any, shape: list[int]) -> None:
        texts = ["".join(self._random.choices('aé✈\0 "\\', k=self._random.randint(0, 9)))]
        texts += [texts[0] * self._random.randint(0, 300) for _ in range(math.prod(shape) - 1)]
        raw = length_prefixed(text.encode() for text in texts)
        self.grpc.inputs.add(name=spec.name, datatype="BYTES", shape=shape)
        self.grpc.raw_input_contents.append(raw)
        shown = {"name": spec.name, "datatype": "BYTES", "shape": shape}
        if self._random.random() < 0.5:
            shown["parameters"] = {"binary_data_size": len(raw)}
            self.binary += raw
        else:
            shown["data"] = np.array(texts, object).reshape(shape).tolist()
        self.rest["inputs"].append(shown)

    def _add_input(self, spec: Any, rows: int) -> None:
        shape = [rows if dim == -1 else dim for dim in spec.shape]
        if spec.datatype == "BYTES":
            self._add_strings(spec, shape)
            return
        seed = self._random.getrandbits(32)
        x = np.random.default_rng(seed).normal(0, 1000, shape).astype(DTYPES[spec.datatype])
        if x.dtype.kind != "i" and self._random.random() < 0.2:
            x.flat[0] = self._random.choice([np.nan, np.inf, -np.inf, -0.0, 1e-41])
        self.grpc.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
        self.grpc.raw_input_contents.append(x.tobytes())
        shown = {"name": spec.name, "datatype": spec.datatype, "shape": shape}
        if self._random.random() < 0.5:
            shown["parameters"] = {"binary_data_size": x.nbytes}
            self.binary += x.tobytes()
        else:
            shown["data"] = (x if self._random.random() < 0.5 else x.ravel()).tolist()
        self.rest["inputs"].append(shown)


Outputs = dict[str, tuple[str, list[int], bytes]]
"""Datatype, shape and bytes of each output."""


def contents(answer: Answer, expected: Outputs) -> Outputs:
    """Outputs of an answer; where text has lost the sign of a NaN, it is that of ``expected``."""
    assert answer.status == 200, answer.body
    found: Outputs = {}
    at = 0
    for each in answer.json["outputs"]:
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None and each["datatype"] == "BYTES":
            raw = length_prefixed(text.encode() for text in each["data"])
        elif size is None:
            dtype = DTYPES[each["datatype"]]
            values = np.array(each["data"], dtype)
            wanted = np.frombuffer(expected[each["name"]][2], dtype)
            if dtype is not np.int32:
                is_nan = np.isnan(values) & np.isnan(wanted)
                values[is_nan] = wanted[is_nan]
            raw = values.tobytes()
        else:
            raw, at = answer.binary[at : at + size], at + size
        found[each["name"]] = each["datatype"], each["shape"], raw
    return found


def check_pairs(server: ServerProcess, count: int, seed: int) -> None:
    random_ = random.Random(seed)
    with triton.InferenceServerClient(server.address) as grpc_client:
        names = ("cnn", "two", "fp32", "fp16", "bf16", "int32", "greeting", "turned")
        metadata = {name: grpc_client.get_model_metadata(name) for name in names}
        for _ in range(count):
            name = random_.choice(names)
            pair = Pair(random_, name, metadata[name])
            path = f"/v2/models/{name}{random_.choice(['', '/versions/1'])}/infer"
            encoding = random_.choice(["identity", "gzip", "deflate;q=0"])

            answer = call(server, path, pair.rest, pair.binary, Accept_Encoding=encoding)

            if answer.headers.get("content-encoding") == "gzip":
                import gzip

                answer = Answer(answer.status, answer.headers, gzip.decompress(answer.body))
            expected = grpc_client._client_stub.ModelInfer(pair.grpc, timeout=120)
            outputs: Outputs = {
                each.name: (each.datatype, list(each.shape), raw)
                for each, raw in zip(expected.outputs, expected.raw_output_contents, strict=True)
            }
            assert contents(answer, outputs) == outputs
            assert answer.json["model_version"] == expected.model_version
            assert answer.json["id"] == "same"


@pytest.mark.ci
def test_a_thousand_random_requests_have_the_same_answers_as_over_grpc(
    oip_server: ServerProcess,
) -> None:
    check_pairs(oip_server, 1000, seed=2)
