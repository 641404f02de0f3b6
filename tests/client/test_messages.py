from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from braid_client import BraidError, InferRequest, InferResult, ServerError
from braid_client.messages import read_answer, read_result, write_request, write_stream_request
from braid_client.wire import inference_pb2 as wire
from tests.client.by_hand import small_bytes  # noqa: F401


def tensor(name: str, values: list[int]) -> wire.Tensor:
    array = np.array(values, "<i8")
    return wire.Tensor(name=name, dtype="INT64", shape=array.shape, data=array.tobytes())


names = st.text(max_size=4)
values = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)
arrays = st.dictionaries(names, values, max_size=3)
responses = st.builds(
    wire.InferResponse,
    model=names,
    version=names,
    request_id=names,
    outputs=st.builds(lambda given: [tensor(*each) for each in given.items()], arrays),
    timing=st.builds(wire.Timing, queue_us=st.integers(0, 2**40)),
    batch_size=st.integers(0, 2**31 - 1),
    plan_id=names,
)
errors = st.builds(wire.InferError, code=st.integers(0, 16), message=names)
stream_responses = st.builds(
    wire.InferStreamResponse, request_id=names, response=responses
) | st.builds(wire.InferStreamResponse, request_id=names, error=errors)


def agree(read: Callable[[], InferResult], response: wire.InferResponse) -> bool:
    """Whether both say the same; two outputs of one name are refused."""
    names = [each.name for each in response.outputs]
    if len(set(names)) < len(names):
        with pytest.raises(ServerError, match="two outputs of one name"):
            read()
        return True
    result = read()
    wanted = {each.name: np.frombuffer(each.data, "<i8").tolist() for each in response.outputs}
    return (
        {name: array.tolist() for name, array in result.outputs.items()} == wanted
        and (result.model, result.version, result.request_id, result.plan_id, result.batch_size)
        == (
            response.model,
            response.version,
            response.request_id,
            response.plan_id,
            response.batch_size,
        )
        and result.timing.queue_us == response.timing.queue_us
    )


@given(
    names, names, arrays, st.lists(names, max_size=2), st.integers(0, 10), st.none() | st.just(2)
)
def test_requests_are_written_as_protobuf_writes_them(
    model: str,
    request_id: str,
    inputs: dict[str, list[int]],
    outputs: list[str],
    priority: int,
    timeout_s: int | None,
) -> None:
    given_inputs = {name: np.array(each, np.int64) for name, each in inputs.items()}
    request = InferRequest(model, given_inputs, outputs, 3, request_id, priority, timeout_s)

    assert wire.InferRequest.FromString(write_request(request)) == wire.InferRequest(
        model=model,
        version="3",
        request_id=request_id,
        inputs=[tensor(*each) for each in inputs.items()],
        outputs=outputs,
        priority=priority,
        timeout_us=2_000_000 if timeout_s else 0,
    )


def test_a_request_of_a_stream_has_an_id() -> None:
    named, unnamed = (
        wire.InferRequest.FromString(write_stream_request(InferRequest("m", {}, request_id=name)))
        for name in ("a", None)
    )
    assert named.request_id == "a"
    assert len(unnamed.request_id) == 32


@given(responses, responses)
def test_results_are_read_as_protobuf_reads_them(
    first: wire.InferResponse, second: wire.InferResponse
) -> None:
    data = first.SerializeToString()
    assert agree(lambda: read_result(data), first)
    data += second.SerializeToString()  # fields may stand in any order, the last one counts
    assert agree(lambda: read_result(data), wire.InferResponse.FromString(data))


@given(stream_responses, stream_responses)
def test_answers_are_read_as_protobuf_reads_them(first: Any, second: Any) -> None:
    for data in (first.SerializeToString(), first.SerializeToString() + second.SerializeToString()):
        wanted = wire.InferStreamResponse.FromString(data)
        answer = read_answer(data)
        assert answer.request_id == wanted.request_id
        if wanted.HasField("response"):
            assert agree(answer.unwrap, wanted.response)
        else:
            assert answer.error is not None
            with pytest.raises(BraidError):
                answer.unwrap()


@given(st.binary(max_size=60) | responses.map(lambda r: r.SerializeToString()[:-1]))
def test_what_protobuf_refuses_is_the_servers_fault(data: bytes) -> None:
    try:
        wire.InferResponse.FromString(data)
    except DecodeError:
        with pytest.raises(ServerError):
            read_result(data)


def test_a_response_of_very_many_fields_is_left_to_protobuf() -> None:
    response = wire.InferResponse(outputs=[tensor(str(n), [n]) for n in range(5000)])
    assert agree(lambda: read_result(response.SerializeToString()), response)
