"""Messages between server and worker, and the frames that carry them."""

import socket
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.core import errors
from braid.core.errors import DiskFailure, QueueFull, WorkerFault
from braid.core.graph import Operator, OpGraph
from braid.core.json_form import to_json
from braid.core.measurement import PlanMeasurement, StageLatency
from braid.core.plan import Launch, StreamPlan, sequential_plan
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.engine.link.frames import BlockingChannel, FrameDecoder, encode
from braid.engine.link.messages import (
    AnyReply,
    AnyRequest,
    AskStatus,
    Message,
    RunExecutable,
    WorkerAnswer,
    WorkerCall,
    WorkerFailure,
    WorkerStatus,
)
from braid.engine.ops.evaluation import TooLarge

SPEC = TensorType("FP32", (2, 3))
GRAPH = OpGraph(
    "g", {"x": SPEC}, {"y": "r"}, {}, (Operator("r", "aten.relu", ("x",), ("r",)),), {"r": SPEC}
)
LATENCIES = st.floats(1e-3, 1e9)
NUMBERS = st.integers(0, 2**64 - 1)
st.register_type_strategy(
    TensorType,
    st.builds(TensorType, st.sampled_from(["FP32", "INT8"]), st.tuples(st.integers(0, 9))),
)
st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))  # that MessagePack has
st.register_type_strategy(OpGraph, st.just(GRAPH))
st.register_type_strategy(
    StreamPlan,
    st.sampled_from(
        [sequential_plan(3), StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 1, (0,))), 2)]
    ),
)
st.register_type_strategy(
    Stage, st.builds(Stage, st.just(((0, 2), (1,))), latency_us=st.none() | LATENCIES)
)


def of(kind: type) -> st.SearchStrategy[Any]:
    """Instances of a class; latencies are possible ones."""
    names = set(signature(kind).parameters)
    drawn: dict[str, Any] = {}
    if "latency_us" in names:
        drawn["latency_us"] = LATENCIES
    for name in names & {"number", "offset", "call", "compute_us"}:
        drawn[name] = NUMBERS
    for name in names & {"ratios", "turns_us"}:
        drawn[name] = st.lists(LATENCIES).map(tuple)
    return st.builds(kind, **drawn)


for kind in (PlanMeasurement, StageLatency):
    st.register_type_strategy(kind, of(kind))

st.register_type_strategy(
    Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind) or (str, str)))
)

CLASSES = [kind for kind in get_args(Message) if kind not in (WorkerCall, WorkerAnswer)]
MESSAGES = st.one_of(
    *(st.builds(WorkerCall, NUMBERS, of(kind)) for kind in get_args(AnyRequest)),
    *(st.builds(WorkerAnswer, NUMBERS, of(kind)) for kind in get_args(AnyReply)),
    *map(of, CLASSES),
)


def same(one: object, other: object) -> bool:
    """Equality in which NaN equals NaN."""
    return one == other or repr(one) == repr(other)


@given(messages=st.lists(MESSAGES, max_size=5), cut=st.integers(1, 400))
def test_messages_survive_any_chunking(messages: list[Message], cut: int) -> None:
    stream = b"".join(encode(message) for message in messages)
    decoder = FrameDecoder()

    found = [
        message
        for start in range(0, len(stream), cut)
        for message in decoder.feed(stream[start : start + cut])
    ]

    assert len(found) == len(messages)
    assert all(same(got, sent) for got, sent in zip(found, messages, strict=True))


def test_a_frame_over_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="over"):
        list(FrameDecoder().feed(b"\xff\xff\xff\xff{}"))


@pytest.mark.parametrize(
    "body",
    [b"", b"\x01", b"\x01" + bytes(24), b"\x01" + bytes(26), b"\x02" + bytes(15), b"\x03", b"[]"],
)
def test_a_frame_that_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no message: "):
        list(FrameDecoder().feed(len(body).to_bytes(4, "little") + body))


CALL = to_json(WorkerCall(1, RunExecutable(2, 64)))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({**CALL, "type": "Nothing"}, "Invalid value 'Nothing'"),
        ({**CALL, "more": 1}, "unknown field `more`"),
        ({"type": "WorkerCall", "number": 1}, "missing required field `request`"),
        ({**CALL, "number": "1"}, r"Expected `int`, got `str` - at `\$.number`"),
        ({**CALL, "number": True}, r"Expected `int`, got `bool` - at `\$.number`"),
        (
            {**CALL, "request": {**CALL["request"], "offset": None}},
            r"Expected `int`, got `None` - at `\$.request.offset`",
        ),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_what_is_no_message_is_refused_with_the_field(document: Any, why: str) -> None:
    body = msgspec.msgpack.encode(document)

    with pytest.raises(ValueError, match=f"no message: .*{why}"):
        list(FrameDecoder().feed(len(body).to_bytes(4, "little") + body))


def test_an_error_arrives_as_one_of_its_class_with_its_facts() -> None:
    full = WorkerFailure.of(3, QueueFull("full", 1.5)).error
    assert isinstance(full, QueueFull)
    assert (str(full), full.retry_after_s) == ("full", 1.5)

    disk = WorkerFailure.of(3, DiskFailure(errors.DiskTrouble.FULL, "the store")).error
    assert isinstance(disk, DiskFailure)

    failure = WorkerFailure.of(3, QueueFull("full"))
    unknown = msgspec.structs.replace(failure, error_class="DiskTrouble").error
    assert type(unknown) is WorkerFault


def test_an_error_that_only_the_worker_has_arrives_as_the_one_it_derives_from() -> None:
    arrived = WorkerFailure.of(3, TooLarge("a terabyte")).error

    assert type(arrived) is errors.InvalidRequest
    assert str(arrived) == "a terabyte"


def test_an_error_that_is_no_unicode_arrives() -> None:
    failure = WorkerFailure.of(3, QueueFull("no file \udc80"))

    (arrived,) = FrameDecoder().feed(encode(failure))

    assert arrived == failure
    assert failure.text == "no file ?"


def test_a_status_is_small() -> None:
    assert len(encode(WorkerStatus(7, 0.5, None))) < 100
    assert to_json(AskStatus()) == {"type": "AskStatus"}


@pytest.fixture
def ends() -> Iterator[tuple[BlockingChannel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield BlockingChannel(ours), theirs


def test_a_peer_that_dies_with_messages_unread_ends_the_stream(
    ends: tuple[BlockingChannel, socket.socket],
) -> None:
    channel, peer = ends
    channel.send(AskStatus())
    peer.close()

    assert channel.receive() is None


def test_nothing_is_sent_to_a_peer_that_is_gone(
    ends: tuple[BlockingChannel, socket.socket],
) -> None:
    channel, peer = ends
    peer.close()

    channel.send(AskStatus())

    assert channel.receive() is None
