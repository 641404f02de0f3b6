"""The hand-made reading and writing of tensor messages agrees with protobuf, whatever comes."""

from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2 import ModelInferRequest

from braid.server.inference.requests import InferenceResult, OutputTensor
from braid.server.servicers.braid_v1 import BraidV1, ReadRequest, write_response, write_tensors
from braid.server.servicers.oip.tensors import (
    OpenInference,
    SplitMessage,
    write_reply,
    write_stream_reply,
)
from braid_client import wire_fields
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


def whole_open(received: Any) -> Any:
    """The message as protobuf would have parsed it."""
    request = ModelInferRequest()
    request.CopyFrom(received.message)
    request.raw_input_contents.extend(bytes(each) for each in received.raw_contents)
    return request


open_requests = st.builds(
    ModelInferRequest,
    model_name=st.text(max_size=5),
    id=st.text(max_size=5),
    inputs=st.lists(
        st.builds(
            ModelInferRequest.InferInputTensor,
            name=st.text(max_size=3),
            shape=shapes,
        ),
        max_size=3,
    ),
    raw_input_contents=st.lists(st.binary(max_size=300), max_size=4),
)
PROTOCOLS: Mapping[str, tuple[Any, ...]] = {
    "braid.v1": (InferRequest.FromString, BraidV1.read, whole, requests),
    "open": (ModelInferRequest.FromString, OpenInference.read, whole_open, open_requests),
}


@pytest.mark.parametrize("name", PROTOCOLS)
@given(st.data())
def test_requests_are_read_as_protobuf_reads_them(name: str, drawn: Any) -> None:
    parse, read, whole_of, kind = PROTOCOLS[name]
    data = b"".join(drawn.draw(kind).SerializeToString() for _ in range(2))
    assert whole_of(read(data)) == parse(data)


@pytest.mark.parametrize("name", PROTOCOLS)
@given(st.data())
def test_what_protobuf_refuses_is_refused(name: str, drawn: Any) -> None:
    parse, read, whole_of, kind = PROTOCOLS[name]
    cut_off = kind.map(lambda request: request.SerializeToString()[:-1])
    data = drawn.draw(st.binary(max_size=60) | cut_off)
    try:
        wanted = parse(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            read(data)
    else:
        assert whole_of(read(data)) == wanted


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


def test_a_message_of_very_many_fields_is_left_to_protobuf() -> None:
    request = ModelInferRequest(raw_input_contents=[b"x"] * 10_000)
    data = request.SerializeToString()
    assert wire_fields.split(data, 7) is None
    assert whole_open(OpenInference.read(data)) == request


@given(st.lists(st.binary(max_size=300), max_size=4), st.text(max_size=5))
def test_open_replies_are_written_as_protobuf_writes_them(contents: list[bytes], text: str) -> None:
    head = service_pb2.ModelInferResponse(model_name="m", id=text)
    reply = SplitMessage(head, [memoryview(each) for each in contents])
    response = service_pb2.ModelInferResponse(model_name="m", id=text, raw_output_contents=contents)

    assert service_pb2.ModelInferResponse.FromString(b"".join(write_reply(reply))) == response
    stream = service_pb2.ModelStreamInferResponse.FromString(
        b"".join(write_stream_reply(reply, text))
    )
    assert stream.infer_response == response
    assert stream.error_message == text
