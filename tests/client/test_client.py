"""Both clients against the fake server; ``braid`` is the sync one, then the async one."""

import asyncio
import contextlib
import inspect
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

import braid_client
from braid_client import (
    AsyncClient,
    BraidError,
    Client,
    ClientClosed,
    FailedPrecondition,
    InferRequest,
    InvalidArgument,
    ModelNotFound,
    NotFound,
    ScheduleNotFound,
    ServerError,
    TensorSpec,
    Timeouts,
    Timing,
    Unavailable,
    errors,
)
from tests.client.conftest import FAST
from tests.client.fake_server import GRAPH, REQUEST_ID, SCHEDULE, FakeServer

X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
Code = grpc.StatusCode


def test_infer_answers_arrays_and_what_happened(braid: Any) -> None:
    result = braid.infer("echo", X, version=3, request_id="mine")

    assert np.array_equal(result.outputs["x"], X["x"])
    assert result.timing == Timing(queue_us=10, compute_us=20, total_us=30)
    assert (result.batch_size, result.batch_rows, result.plan_id) == (4, 3, "plan-1")
    assert (result.model, result.version, result.request_id) == ("echo", "3", "mine")


def test_only_the_outputs_asked_for_are_wanted(braid: Any) -> None:
    result = braid.infer("echo", {**X, "y": np.zeros(1)}, outputs=["y"])

    assert list(result.outputs) == ["y"]


def test_an_array_alone_is_sent_without_a_name(braid: Any) -> None:
    result = braid.infer("echo", X["x"])

    assert np.array_equal(result.outputs[""], X["x"])


def test_what_is_no_array_is_refused_by_its_type(braid: Any, server: FakeServer) -> None:
    with pytest.raises(InvalidArgument, match="the input is a list; give a numpy array"):
        braid.infer("echo", [1.0, 2.0])
    assert server.calls == []


@pytest.mark.parametrize(
    "call",
    [
        lambda braid: braid.infer("echo", X),
        lambda braid: braid.models(),
        lambda braid: braid.delete("echo"),
        lambda braid: list(braid.watch_job("job-1")),
        lambda braid: list(braid.infer_stream([InferRequest("echo", X)])),
        lambda braid: braid.register("echo", b"\x08\x07"),
    ],
)
def test_a_closed_client_says_so(braid: Any, server: FakeServer, call: Any) -> None:
    braid.close()
    braid.close()

    with pytest.raises(ClientClosed, match="the client is closed"):
        call(braid)
    assert server.calls == []


def test_a_tensor_over_grpcs_default_limit_passes(braid: Any) -> None:
    array = np.zeros((3, 1024, 1024), np.float32)

    assert braid.infer("echo", {"x": array}).outputs["x"].nbytes == array.nbytes > 4 << 20


def test_a_wrong_input_never_reaches_the_server(braid: Any, server: FakeServer) -> None:
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        braid.infer("echo", {"x": np.zeros(2, np.complex64)})
    assert server.calls == []


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_each_status_is_an_error_of_its_own_class(
    braid: Any, server: FakeServer, code: grpc.StatusCode
) -> None:
    server.fails("ListModels", code, "what happened", times=9)

    with pytest.raises(errors.ERROR_CLASSES[code]) as caught:
        braid.models()

    assert str(caught.value) == "what happened"
    assert (caught.value.code, caught.value.request_id) == (code, REQUEST_ID)


def test_the_table_of_errors_covers_every_status() -> None:
    assert set(errors.ERROR_CLASSES) == set(Code) - {Code.OK}
    assert set(braid_client.__all__) >= {kind.__name__ for kind in errors.ERROR_CLASSES.values()}


def test_what_was_not_found_is_told_by_the_class(braid: Any) -> None:
    with pytest.raises(ModelNotFound, match="no model named 'nobody'"):
        braid.infer("nobody", X)
    with pytest.raises(ModelNotFound):
        braid.delete("nobody")
    with pytest.raises(ScheduleNotFound):
        braid.schedule("echo", batch=7)
    with pytest.raises(NotFound):
        braid.cancel_job("nothing")


def test_a_full_queue_is_tried_again_when_the_server_said(braid: Any, server: FakeServer) -> None:
    server.fails("Infer", Code.RESOURCE_EXHAUSTED, retry_after_ms="150")

    started = time.monotonic()
    braid.infer("echo", X)

    assert time.monotonic() - started >= 0.15
    assert server.calls == ["Infer"] * 2


def test_reads_are_tried_again_but_deletions_never(braid: Any, server: FakeServer) -> None:
    server.fails("GetModel", Code.UNAVAILABLE)
    server.fails("DeleteModel", Code.UNAVAILABLE)

    assert braid.model("echo").name == "echo"
    with pytest.raises(Unavailable):
        braid.delete("echo")
    assert server.calls == ["GetModel", "GetModel", "DeleteModel"]


def test_the_deadline_bounds_all_attempts_together(braid: Any, server: FakeServer) -> None:
    server.delay_s = 0.2
    server.fails("Infer", Code.UNAVAILABLE, times=9)

    started = time.monotonic()
    with pytest.raises(BraidError) as caught:
        braid.infer("echo", X, timeout_s=0.5)

    assert isinstance(caught.value, Unavailable | braid_client.DeadlineExceeded)
    assert time.monotonic() - started < 20
    assert len(server.calls) <= 3


def test_a_call_without_a_deadline_gets_the_clients(server: FakeServer) -> None:
    server.delay_s = 600.0
    with (
        Client(server.address, timeouts=Timeouts(call_s=0.05)) as braid,
        pytest.raises(braid_client.DeadlineExceeded),
    ):
        braid.models()


def test_a_connection_may_take_longer_than_the_pause_between_two(server: FakeServer) -> None:
    host, port = server.address.split(":")

    class Slow(socketserver.BaseRequestHandler):
        """A network in which the first byte takes long: both directions are passed on."""

        def handle(self) -> None:
            time.sleep(0.5)
            with socket.create_connection((host, int(port))) as there:
                onward = threading.Thread(target=_pass_on, args=(self.request, there))
                onward.start()
                _pass_on(there, self.request)
                onward.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        with Client(f"127.0.0.1:{relay.server_address[1]}") as braid:
            braid.delete("echo")  # calls like this one are never tried again
        relay.shutdown()
    assert server.calls == ["DeleteModel"]


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_models_and_schedules_are_read(braid: Any) -> None:
    (model,) = braid.models()

    assert model == braid.model("echo")
    assert model.inputs == (TensorSpec("x", "FP32", ("batch", 3, 4, 4)),)
    assert str(model.inputs[0]) == "x: FP32[batch, 3, 4, 4]"
    assert (model.state, model.batched, model.schedules[0].speedup) == ("SERVING", True, 1.5)
    assert braid.schedule("echo", 1, "cpu") == (SCHEDULE, GRAPH)


def test_metadata_goes_with_every_call(server: FakeServer) -> None:
    with Client(server.address, metadata=[("authorization", "Bearer t")]) as braid:
        braid.models()
        braid.infer("echo", X)
    assert [sent["authorization"] for sent in server.metadata] == ["Bearer t", "Bearer t"]


def test_a_stream_answers_each_request_and_survives_a_bad_one(braid: Any) -> None:
    requests = [
        InferRequest("echo", X, request_id="a"),
        InferRequest("nobody", X, request_id="b"),
        InferRequest("echo", X),
    ]

    answers = {answer.request_id: answer for answer in braid.infer_stream(requests)}

    assert len(answers) == 3
    assert np.array_equal(answers["a"].unwrap().outputs["x"], X["x"])
    with pytest.raises(ModelNotFound, match="no model named 'nobody'") as caught:
        answers["b"].unwrap()
    assert caught.value.request_id == "b"


def test_what_the_requests_raise_the_stream_raises(braid: Any) -> None:
    def requests() -> Iterator[InferRequest]:
        yield InferRequest("echo", X)
        raise KeyError("no more pictures")

    with pytest.raises(KeyError, match="no more pictures"):
        list(braid.infer_stream(requests()))


def test_a_stream_that_breaks_is_an_error_and_not_retried(braid: Any, server: FakeServer) -> None:
    server.fails("InferStream", Code.UNAVAILABLE)

    with pytest.raises(Unavailable):
        list(braid.infer_stream([InferRequest("echo", X)]))
    assert server.calls == ["InferStream"]


def test_a_stream_refused_midway_is_told_as_the_server_told_it(
    braid: Any, server: FakeServer
) -> None:
    server.fails("InferStream", Code.FAILED_PRECONDITION, "not now", times=20)
    request = InferRequest("echo", {"x": np.zeros(1 << 18, np.uint8)})

    for _ in range(20):  # grpc.aio loses the status in nine of ten
        with pytest.raises(FailedPrecondition, match="not now"):
            list(braid.infer_stream([request] * 20))


def test_a_malformed_answer_is_that_requests_error(braid: Any, server: FakeServer) -> None:
    server.truncate = True

    with pytest.raises(ServerError, match="output 'x'"):
        braid.infer("echo", X)
    (answer,) = braid.infer_stream([InferRequest("echo", X)])
    assert isinstance(answer.error, ServerError)


async def test_an_async_stream_reads_async_requests(server: FakeServer) -> None:
    async def requests() -> Any:
        for n in range(3):
            await asyncio.sleep(0)
            yield InferRequest("echo", X, request_id=str(n))

    async with AsyncClient(server.address) as braid:
        ids = [answer.request_id async for answer in braid.infer_stream(requests())]
    assert ids == ["0", "1", "2"]


async def test_cancelling_a_task_cancels_its_call(server: FakeServer) -> None:
    server.delay_s = 600.0
    async with AsyncClient(server.address) as braid:
        task = asyncio.create_task(braid.infer("echo", X))
        await asyncio.sleep(0.2)
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert time.monotonic() - started < 120


async def test_many_calls_are_in_flight_at_once(server: FakeServer) -> None:
    async with AsyncClient(server.address) as braid:
        inputs = [{"x": np.full(3, n)} for n in range(50)]
        results = await asyncio.gather(*(braid.infer("echo", x) for x in inputs))
    assert [int(result.outputs["x"][0]) for result in results] == list(range(50))


async def test_the_sync_client_serves_where_an_event_loop_runs(server: FakeServer) -> None:
    """As in a notebook: it leaves nothing to the loop, not even iterators that are dropped."""
    with Client(server.address) as braid:
        job = braid.register("net", b"x", wait=True)
        assert next(braid.watch_job(job.id)).id == job.id
        assert next(braid.infer_stream([InferRequest("echo", X)] * 3)).error is None
        assert np.array_equal(braid.infer("echo", X).outputs["x"], X["x"])
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


def test_both_clients_have_the_same_surface() -> None:
    def surface(client: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [
                (p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()
            ]
            for name, method in vars(client).items()
            if inspect.isfunction(method) and (not name.startswith("_") or name == "__init__")
        }

    assert surface(Client) == surface(AsyncClient)


@pytest.mark.parametrize("port_answers", ["text", "http"])
def test_a_port_that_does_not_speak_grpc_is_told_from_one_that_is_away(port_answers: str) -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\n" if port_answers == "http" else b"hello there\n"

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{other.server_address[1]}"
        with (
            braid_client.Client(address, retry=FAST) as client,
            pytest.raises(Unavailable, match=r"does not speak gRPC.*8001"),
        ):
            client.models()
        other.shutdown()
