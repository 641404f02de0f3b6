"""Raw and typed contents, every datatype, classification: values come back as they should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.oip.conftest import ramp
from tests.server.service import ServerProcess


@pytest.fixture
def stub(oip_server: ServerProcess) -> Iterator[Any]:
    with grpc.insecure_channel(oip_server.address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.mark.parametrize(
    ("model", "dtype", "datatype"),
    [
        ("fp32", np.float32, "FP32"),
        ("fp16", np.float16, "FP16"),
        ("bf16", ml_dtypes.bfloat16, "BF16"),
        ("int32", np.int32, "INT32"),
    ],
)
def test_raw_contents(oip_server: ServerProcess, model: str, dtype: Any, datatype: str) -> None:
    x = ramp(5).astype(dtype)
    given = triton.InferInput("x", [5, 3], datatype)
    given.set_data_from_numpy(x)
    with triton.InferenceServerClient(oip_server.address) as client:
        y = client.infer(model, [given]).as_numpy("y")

    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x + x)


@pytest.mark.parametrize(
    ("model", "name", "datatype", "field", "values"),
    [
        ("fp32", "x", "FP32", "fp32_contents", [1.5, -2.0, 3.0]),
        ("int32", "x", "INT32", "int_contents", [1, -2, 2**30 - 1]),
        ("embedding", "ids", "INT64", "int64_contents", [0, 3, 9, 1]),
    ],
)
def test_typed_contents(
    stub: Any, model: str, name: str, datatype: str, field: str, values: list[Any]
) -> None:
    given = service_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=[1, len(values)], contents={field: values}
    )

    response = stub.ModelInfer(service_pb2.ModelInferRequest(model_name=model, inputs=[given]))

    output = np.frombuffer(
        response.raw_output_contents[0], triton_dtype(response.outputs[0].datatype)
    )
    if model == "embedding":  # row i of the table is (2i, 2i + 1)
        assert output.tolist() == [float(v) for i in values for v in (2 * i, 2 * i + 1)]
    else:
        assert output.tolist() == [2 * value for value in values]


def triton_dtype(datatype: str) -> Any:
    return {"FP32": np.float32, "INT32": np.int32}[datatype]


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

    assert y.tolist() == [
        [b"14.000000:1", b"6.000000:2"],
        [b"-2.000000:0", b"-2.000000:2"],
    ]
