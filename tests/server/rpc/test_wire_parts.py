from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from braid.core.errors import TooManyParts
from braid.server.rpc.wire_parts import MAX_NUMBERS, MAX_PARTS, MAX_TEXT_BYTES, counted
from braid_client.wire import admin_pb2, inference_pb2
from braid_client.wire_fields import field

Request = service_pb2.ModelInferRequest
Contents = service_pb2.InferTensorContents
ENTRY = Request(parameters={"a": service_pb2.InferParameter(int64_param=1)}).SerializeToString()
LONG_ID = Request(id="x" * (4 * MAX_PARTS))  # one part; shorter messages are not looked at


class Reading:
    """Reads messages of one type, and knows what was read."""

    def __init__(self, kind: Any = Request) -> None:
        self.read: list[int] = []
        self._kind = kind

    def __call__(self, data: bytes) -> Any:
        def decode(data: bytes) -> Any:
            self.read.append(len(data))
            return self._kind.FromString(data)

        return counted(decode, self._kind.DESCRIPTOR, Contents.DESCRIPTOR)(data)


BOMBS = {
    "empty inputs": (Request, b"\x2a\x00" * 1_000_000),
    "numbered fields that are not known": (Request, b"\x78\x01" * 1_000_000),
    "words that are not known": (Request, b"\x7a\x00" * 1_000_000),
    "eight bytes each": (Request, (b"\x79" + bytes(8)) * 200_000),
    "four bytes each": (Request, (b"\x7d" + bytes(4)) * 200_000),
    "groups": (Request, b"\x7b\x7c" * 200_000),
    "parameters": (Request, ENTRY * 60_000),
    "parameters of one input": (Request, b"".join(field(5, [b"\x22\x00" * 1_000_000]))),
    "a shape": (Request, Request(inputs=[{"shape": [1] * 1_000_000}]).SerializeToString()),
    "numbers one by one": (Request, b"".join(field(5, field(5, [(b"\x35" + bytes(4)) * 200_000])))),
    "strings": (Request, b"".join(field(5, field(5, [b"\x42\0" * 1_000_000])))),
    "contents": (Request, b"\x3a\x00" * 1_000_000),
    "models to load": (service_pb2.RepositoryModelLoadRequest, b"\x1a\x00" * 1_000_000),
    "settings": (service_pb2.LogSettingsRequest, b"\x0a\x00" * 1_000_000),
    "labels": (admin_pb2.ServingConfig, b"\x1a\x00" * 1_000_000),
    "names of outputs": (inference_pb2.InferRequest, b"\x22\x00" * 1_000_000),
    "empty tensors": (inference_pb2.InferRequest, b"\x1a\x00" * 1_000_000),
    "batch sizes": (
        admin_pb2.RegisterModelRequest,
        admin_pb2.RegisterModelRequest(
            header=admin_pb2.RegisterModelHeader(batch_sizes=[1] * 1_000_000)
        ).SerializeToString(),
    ),
}


@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.parametrize("view", [bytes, memoryview])
def test_too_many_parts_are_refused_unread(what: str, view: Any) -> None:
    kind, data = BOMBS[what]
    reading = Reading(kind)

    with pytest.raises(TooManyParts, match=f"more than {MAX_PARTS} fields and messages; send"):
        reading(view(data))

    assert not reading.read


def test_they_are_refused_before_what_cannot_be_read_behind_them() -> None:
    reading, bomb = Reading(), b"".join(field(5, [b"\x22\x00" * 1_000_000]))

    for bad in (b"\xff" * 20, b"\x0a\x7f", b"\x0e"):
        with pytest.raises(TooManyParts):
            reading(bomb + bad)

    assert not reading.read


def test_a_number_without_an_end_is_left_to_protobuf() -> None:
    reading, data = Reading(), b"\xff" * (1 << 20)

    with pytest.raises(Exception, match="Error parsing"):
        reading(data)

    assert reading.read == [len(data)]


def parameters(count: int) -> dict[str, Any]:
    return {str(n): service_pb2.InferParameter() for n in range(count)}


MESSAGES: Mapping[str, Callable[[int], Message]] = {
    "inputs": lambda parts: Request(inputs=[{}] * parts),
    "names of inputs": lambda parts: Request(inputs=[{"name": "x"}] * (parts // 2)),
    "outputs and their parameters": lambda parts: Request(
        outputs=[{"parameters": parameters((parts - 1) // 3)}]
    ),
    "contents": lambda parts: Request(raw_input_contents=[b""] * parts),
    "a shape": lambda parts: Request(inputs=[{"shape": [1] * (parts - 2)}]),
}
"""Messages with as many parts beside the long id, by what these are."""


@pytest.mark.parametrize("make", MESSAGES.values(), ids=MESSAGES)
def test_as_many_parts_as_may_be_are_read(make: Callable[[int], Message]) -> None:
    last, more = make(MAX_PARTS - 4), make(MAX_PARTS + 4)
    for message in (last, more):
        message.MergeFrom(LONG_ID)

    assert Reading()(last.SerializeToString()) == last
    with pytest.raises(TooManyParts):
        Reading()(more.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        Request(model_name="x" * (MAX_TEXT_BYTES + 1)),
        Request(inputs=[{"name": "x" * (MAX_TEXT_BYTES + 1)}]),
        Request(parameters={"x" * (MAX_TEXT_BYTES + 1): service_pb2.InferParameter()}),
    ],
    ids=["model", "input", "parameter"],
)
def test_a_text_longer_than_any_name_is_refused_unread(message: Message) -> None:
    reading = Reading()

    with pytest.raises(TooManyParts, match=f"more than {MAX_TEXT_BYTES} bytes in a text"):
        reading(message.SerializeToString())

    assert not reading.read


def test_a_text_may_be_long_and_bytes_longer() -> None:
    message = Request(
        model_name="x" * MAX_TEXT_BYTES, raw_input_contents=[bytes(2 * MAX_TEXT_BYTES)]
    )

    assert Reading()(message.SerializeToString()) == message


def test_numbers_of_tensors_are_not_parts() -> None:
    floats = Request(inputs=[{"contents": Contents(fp32_contents=[1.0] * (2 * MAX_PARTS))}])
    integers = Request(inputs=[{"contents": Contents(int64_contents=[-1] * (2 * MAX_PARTS))}])

    for message in (floats, integers):
        assert Reading()(message.SerializeToString()) == message


@pytest.mark.parametrize(("name", "value"), [("int64_contents", b"\x01"), ("bool_contents", b"\1")])
def test_a_tensor_of_too_many_integers_is_refused_unread(name: str, value: bytes) -> None:
    reading, number = Reading(), Contents.DESCRIPTOR.fields_by_name[name].number
    data = b"".join(field(5, field(5, field(number, [value * (MAX_NUMBERS + 1)]))))

    with pytest.raises(TooManyParts, match=f"more than {MAX_NUMBERS} integers or truth values"):
        reading(data)

    assert not reading.read
