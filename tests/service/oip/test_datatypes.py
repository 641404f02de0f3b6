from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as http
from tritonclient.grpc import service_pb2

from tests.service.server_process import ServerProcess


@pytest.mark.parametrize(
    ("model", "datatype", "field", "values", "dtype"),
    [
        ("fp32", "FP32", "fp32_contents", [1.5, -2.0, 3.0], np.float32),
        ("int32", "INT32", "int_contents", [1, -2, 2**30 - 1], np.int32),
        ("uint64", "UINT64", "uint64_contents", [0, 2**62 + 1, 2**63 - 1], np.uint64),
    ],
)
def test_typed_contents(
    stub: Any, model: str, datatype: str, field: str, values: list[Any], dtype: Any
) -> None:
    given = service_pb2.ModelInferRequest.InferInputTensor(
        name="x", datatype=datatype, shape=[1, 3], contents={field: values}
    )

    response = stub.ModelInfer(service_pb2.ModelInferRequest(model_name=model, inputs=[given]))

    doubled = np.frombuffer(response.raw_output_contents[0], dtype)
    assert doubled.tolist() == [2 * value for value in values]


LARGE = np.array([0, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], np.uint64)


@pytest.mark.parametrize("door", ["gRPC", "REST in binary", "REST in JSON"])
def test_the_largest_unsigned_integers(oip_server: ServerProcess, door: str) -> None:
    """Outputs of a plan of Braid's and of ONNX Runtime, whose type is C's unsigned long long."""
    api, address = (
        (triton, oip_server.address) if door == "gRPC" else (http, oip_server.http_address)
    )
    how = {} if door == "gRPC" else {"binary_data": door == "REST in binary"}

    def given(name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
        made = api.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, **how)
        return made

    wanted = [api.InferRequestedOutput("y", **how)]
    half, keep = LARGE[1:4].reshape(1, 3) // np.uint64(2), np.array([1, 0, 1, 1, 1], bool)
    with api.InferenceServerClient(address) as client:
        doubled = client.infer("uint64", [given("x", half, "UINT64")], outputs=wanted)
        chosen = client.infer(
            "chosen", [given("x", LARGE, "UINT64"), given("keep", keep, "BOOL")], outputs=wanted
        )

    assert doubled.as_numpy("y").tolist() == [[2**63 - 2, 2**63, 2**63]]
    assert chosen.as_numpy("y").dtype == np.uint64
    assert chosen.as_numpy("y").tolist() == [0, 2**63, 2**63 + 1, 2**64 - 1]


@pytest.mark.parametrize("model", ["fp32", "fp16", "bf16", "int32"])
def test_classification_gives_the_largest_first(oip_server: ServerProcess, model: str) -> None:
    dtype = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32}.get(
        model, ml_dtypes.bfloat16
    )
    x = np.array([[1, 7, 3], [-1, -5, -1]]).astype(dtype)
    given = triton.InferInput("x", [2, 3], model.upper())
    given.set_data_from_numpy(x)
    with triton.InferenceServerClient(oip_server.address) as client:
        wanted = [triton.InferRequestedOutput("y", class_count=2)]
        y = client.infer(model, [given], outputs=wanted).as_numpy("y")

    assert y.tolist() == [[b"14.000000:1", b"6.000000:2"], [b"-2.000000:0", b"-2.000000:2"]]
