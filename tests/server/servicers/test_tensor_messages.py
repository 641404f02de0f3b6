"""The hand-made reading and writing of ``braid.v1``'s tensors agrees with protobuf."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from braid.server.inference.requests import InferenceResult, OutputTensor
from braid.server.servicers.braid_v1 import BraidV1, ReadRequest, write_response, write_tensors
from braid_client.wire.inference_pb2 import (
    InferRequest,
    InferResponse,
    InferStreamResponse,
    Tensor,
    Timing,
)
from tests.client.by_hand import small_bytes  # noqa: F401

shapes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
tensors = st.builds(
    Tensor, name=st.text(max_size=3), dtype=st.text(max_size=4), shape=shapes,
    data=st.binary(max_size=300),
)  # fmt: skip
requests = st.builds(
    InferRequest, model=st.text(max_size=5), request_id=st.text(max_size=5),
    inputs=st.lists(tensors, max_size=3), outputs=st.lists(st.text(max_size=3), max_size=2),
    timeout_us=st.integers(-(2**63), 2**63 - 1),
)  # fmt: skip


def whole(received: ReadRequest) -> Any:
    """The message as protobuf would have parsed it."""
    request = InferRequest()
    request.CopyFrom(received.message)
    for given_tensor in received.inputs:
        request.inputs.add(
            name=given_tensor.name,
            dtype=given_tensor.dtype,
            shape=given_tensor.shape,
            data=bytes(given_tensor.data),
        )
    return request


@given(requests, requests)
def test_requests_are_read_as_protobuf_reads_them(first: Any, second: Any) -> None:
    data = first.SerializeToString() + second.SerializeToString()
    assert whole(BraidV1.read(data)) == InferRequest.FromString(data)


@given(st.binary(max_size=60) | requests.map(lambda r: r.SerializeToString()[:-1]))
def test_what_protobuf_refuses_is_refused(data: bytes) -> None:
    try:
        wanted = InferRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            BraidV1.read(data)
    else:
        assert whole(BraidV1.read(data)) == wanted


@given(requests, st.lists(tensors, max_size=3, unique_by=lambda tensor: tensor.name))
def test_responses_are_written_as_protobuf_writes_them(request: Any, outputs: list[Any]) -> None:
    named = {t.name: OutputTensor(t.dtype, tuple(t.shape), memoryview(t.data)) for t in outputs}
    outcome = InferenceResult(named, 10, 2, 20, batch_size=4, batch_rows=3, plan_id="plan")
    wanted = InferResponse(
        model=request.model, version="7", request_id=request.request_id, outputs=outputs,
        timing=Timing(queue_us=10, compute_us=20, total_us=33),
        batch_size=4, batch_rows=3, plan_id="plan",
    )  # fmt: skip

    tensors = write_tensors(outcome.outputs)
    unary = b"".join(write_response(request, False, 7, tensors, outcome, 33))
    streamed = b"".join(write_response(request, True, 7, tensors, outcome, 33))

    assert InferResponse.FromString(unary) == wanted
    assert InferStreamResponse.FromString(streamed) == InferStreamResponse(
        request_id=request.request_id, response=wanted
    )
