"""Odd answers end with errors of the client's own, soon; the server is one that says anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braid_client import BraidError, Client, InferRequest, ServerError, Unavailable, errors
from braid_client.wire import admin_pb2
from braid_client.wire import inference_pb2 as wire
from tests.client.conftest import FAST, OnLoop

X = {"x": np.zeros(1, np.float32)}


class AnyServer(grpc.GenericRpcHandler):
    """A server whose every call is answered with ``messages``, then ended with ``hint``."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.hint: str | None = None
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers([self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests, None)
        if self.hint is not None:
            context.set_trailing_metadata(((errors.RETRY_AFTER_MS, self.hint),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        yield from self.messages

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture(scope="module")
def odd() -> Iterator[AnyServer]:
    server = AnyServer()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["sync", "async"])
def client(request: pytest.FixtureRequest, odd: AnyServer) -> Iterator[Any]:
    made = (Client if request.param == "sync" else OnLoop)(odd.address, retry=FAST)
    yield made
    made.close()
    if isinstance(made, OnLoop):
        made.end()


@pytest.fixture(autouse=True)
def unscripted(odd: AnyServer) -> None:
    odd.messages, odd.hint = [], None


def output(name: str = "y", **fields: Any) -> bytes:
    tensor = wire.Tensor(name=name, **fields)
    return wire.InferResponse(outputs=[tensor]).SerializeToString()


FOUR = b"\0\0\0\0"
ODD_OUTPUTS = {
    "2^62 beside 0": output(dtype="FP32", shape=[0, 2**62, 2**62]),
    "strings of 2^62 beside 0": output(dtype="BYTES", shape=[2**62, 0, 2**62]),
    "100 axes": output(dtype="FP32", shape=[1] * 100, data=FOUR),
    "axes without end": output(dtype="FP32", shape=[2**62] * 500_000, data=FOUR),
    "axes of strings": output(dtype="BYTES", shape=[1] * 100, data=FOUR),
    "below 0": output(dtype="FP32", shape=[-1, -1], data=FOUR),
    "strings below 0": output(dtype="BYTES", shape=[-1, -1], data=FOUR),
    "-2 strings": output(dtype="BYTES", shape=[-1, -2], data=FOUR * 2),
    "unknown type": output(dtype="FP8", shape=[4], data=FOUR),
    "half the bytes": output(dtype="FP32", shape=[2], data=FOUR),
    "half a string": output(dtype="BYTES", shape=[1], data=b"\xff\xff\xff\xff"),
    "no UTF-8": output(dtype="BYTES", shape=[1], data=b"\1\0\0\0\xff"),
    "a name twice": output(dtype="INT8", shape=[1], data=b"1") * 2,
    "noise": b"\xff" * 50,
    "a name that is no UTF-8": b"\x0a\x01\xff",
}


@pytest.mark.parametrize("name", ODD_OUTPUTS)
def test_an_odd_output_is_the_servers_fault(name: str, client: Any, odd: AnyServer) -> None:
    odd.messages = [ODD_OUTPUTS[name]]
    begun = time.process_time()

    with pytest.raises(ServerError):
        client.infer("m", X)

    assert time.process_time() - begun < 20.0


def test_other_outputs_than_were_asked_for_are_the_servers_fault(
    client: Any, odd: AnyServer
) -> None:
    odd.messages = [output("y", dtype="INT8", shape=[1], data=b"1")]

    with pytest.raises(ServerError, match="another request"):
        client.infer("m", X, outputs=["y", "z"])


def test_the_answer_to_another_request_is_refused(client: Any, odd: AnyServer) -> None:
    odd.messages = [wire.InferResponse(request_id="theirs").SerializeToString()]

    with pytest.raises(ServerError, match="another request"):
        client.infer("m", X, request_id="mine")


@pytest.mark.parametrize("hint", ["9" * 5000, "9" * 4000, "9" * 300, "-1", "nan", "1e9", "", " 5"])
def test_an_impossible_hint_is_none(hint: str, client: Any, odd: AnyServer) -> None:
    odd.hint = hint

    with pytest.raises(errors.ResourceExhausted, match="full") as caught:
        client.infer("m", X)

    assert caught.value.retry_after_s is None


CALLS: dict[str, Callable[[Any], object]] = {
    "infer": lambda braid: braid.infer("m", X),
    "infer_stream": lambda braid: list(braid.infer_stream([InferRequest("m", X)])),
    "register": lambda braid: braid.register("m", b"\x08\x07"),
    # a job that has not ended is watched on, however often the server ends the stream
    "watch_job": lambda braid: list(islice(braid.watch_job("job", timeout_s=60), 2)),
    "cancel_job": lambda braid: braid.cancel_job("job"),
    "jobs": lambda braid: braid.jobs(),
    "nodes": lambda braid: braid.nodes(),
    "models": lambda braid: braid.models(),
    "model": lambda braid: braid.model("m"),
    "delete": lambda braid: braid.delete("m"),
    "serving": lambda braid: braid.serving("m"),
    "schedule": lambda braid: braid.schedule("m"),
    "schedule_again": lambda braid: braid.schedule_again("m"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_that_is_no_message_is_the_servers_fault(
    name: str, client: Any, odd: AnyServer
) -> None:
    odd.messages = [b"\xff" * 50]

    with pytest.raises(ServerError, match="cannot be decoded"):
        CALLS[name](client)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_comes_the_client_answers_or_raises_its_own(
    name: str, client: Any, odd: AnyServer, data: st.DataObject
) -> None:
    """Fields with the numbers and wire types of real ones, with any content."""
    number = st.integers(1, 30)
    varint = st.integers(0, 2**64 - 1).map(_varint)
    text = st.binary(max_size=8).map(lambda content: _varint(len(content)) + content)
    plain = st.tuples(number, varint).map(lambda f: _varint(f[0] << 3) + f[1])
    nested = st.tuples(number, text).map(lambda f: _varint(f[0] << 3 | 2) + f[1])
    fixed = st.tuples(number, st.binary(min_size=8, max_size=8))
    double = fixed.map(lambda f: _varint(f[0] << 3 | 1) + f[1])
    odd.messages = [b"".join(data.draw(st.lists(plain | nested | double, max_size=6)))]

    with suppress(BraidError):
        CALLS[name](client)


def _varint(value: int) -> bytes:
    head, value = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + _varint(value) if value else bytes([head])


@pytest.mark.parametrize("text", ["", "{", "[5]", "5", "9" * 5000, "[" * 100_000, '"x"'])
def test_a_schedule_that_is_no_object_is_the_servers_fault(
    text: str, client: Any, odd: AnyServer
) -> None:
    documents = admin_pb2.GetScheduleResponse(schedule_json="{}", graph_json=text)
    odd.messages = [documents.SerializeToString()]

    with pytest.raises(ServerError, match="cannot be decoded"):
        client.schedule("m")


def test_a_stream_that_ends_early_says_so(client: Any, odd: AnyServer) -> None:
    answer = wire.InferStreamResponse(request_id="1", response=wire.InferResponse())
    odd.messages = [answer.SerializeToString()]
    requests = [InferRequest("m", X, request_id=str(n)) for n in range(3)]
    answers = client.infer_stream(requests)

    assert next(answers).request_id == "1"
    with pytest.raises(Unavailable, match="before it answered every request"):
        next(answers)


def test_states_that_only_later_versions_know_are_unknown(client: Any, odd: AnyServer) -> None:
    job = admin_pb2.Job(id="j", state=99, eta_seconds=float("nan"), progress=float("inf"))  # type: ignore[arg-type]
    odd.messages = [admin_pb2.ListJobsResponse(jobs=[job]).SerializeToString()]

    (found,) = client.jobs()

    assert found.state == "UNKNOWN"
    assert found.eta_s is None
