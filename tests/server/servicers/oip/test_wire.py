"""The hand-made reading and writing of tensor messages agrees with protobuf, whatever comes."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from braid.server.servicers.oip.tensors import (
    OpenInference,
    SplitMessage,
    write_reply,
    write_stream_reply,
)
from braid_client import wire_fields
from tests.client.by_hand import small_bytes  # noqa: F401

Request = service_pb2.ModelInferRequest


def whole(received: Any) -> Any:
    """The message as protobuf would have parsed it."""
    request = Request()
    request.CopyFrom(received.message)
    request.raw_input_contents.extend(bytes(each) for each in received.raw_contents)
    return request


requests = st.builds(
    Request,
    model_name=st.text(max_size=5),
    id=st.text(max_size=5),
    inputs=st.lists(
        st.builds(
            Request.InferInputTensor,
            name=st.text(max_size=3),
            shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        ),
        max_size=3,
    ),
    raw_input_contents=st.lists(st.binary(max_size=300), max_size=4),
)


@given(requests, requests)
def test_fields_may_stand_in_any_order(first: Any, second: Any) -> None:
    data = first.SerializeToString() + second.SerializeToString()
    assert whole(OpenInference.read(data)) == Request.FromString(data)


@given(st.binary(max_size=60) | requests.map(lambda r: r.SerializeToString()[:-1]))
def test_what_protobuf_refuses_is_refused(data: bytes) -> None:
    try:
        wanted = Request.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            OpenInference.read(data)
    else:
        assert whole(OpenInference.read(data)) == wanted


def test_a_message_of_very_many_fields_is_left_to_protobuf() -> None:
    request = Request(raw_input_contents=[b"x"] * 10_000)
    data = request.SerializeToString()
    assert wire_fields.split(data, 7) is None
    assert whole(OpenInference.read(data)) == request


@given(st.lists(st.binary(max_size=300), max_size=4), st.text(max_size=5))
def test_replies_are_written_as_protobuf_writes_them(contents: list[bytes], text: str) -> None:
    head = service_pb2.ModelInferResponse(model_name="m", id=text)
    reply = SplitMessage(head, [memoryview(each) for each in contents])
    response = service_pb2.ModelInferResponse(model_name="m", id=text, raw_output_contents=contents)

    assert service_pb2.ModelInferResponse.FromString(b"".join(write_reply(reply))) == response
    stream = service_pb2.ModelStreamInferResponse.FromString(
        b"".join(write_stream_reply(reply, text))
    )
    assert stream.infer_response == response
    assert stream.error_message == text
