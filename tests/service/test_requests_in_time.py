"""Streams, deadlines, cancellation and versions, over real processes."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from braid_client import Client, DeadlineExceeded
from braid_client.wire import inference_pb2, inference_pb2_grpc
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess

X = np.zeros((1, 3, 16, 16), np.float32)


def wire_request(request_id: str, *, model: str = "cnn", rows: int = 1) -> Any:
    x = np.full((rows, 3, 16, 16), float(len(request_id)), np.float32)
    tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=x.shape, data=x.tobytes())
    return inference_pb2.InferRequest(model=model, request_id=request_id, inputs=[tensor])


def test_a_stream_answers_every_request_and_goes_on_after_an_error(shared: ServerProcess) -> None:
    requests = [wire_request(f"r{i}", rows=1 + i % 5) for i in range(40)]
    requests[7] = wire_request("r7", model="nobody")
    with grpc.insecure_channel(shared.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        answers = {answer.request_id: answer for answer in stub.InferStream(iter(requests))}

    assert set(answers) == {f"r{i}" for i in range(40)}
    assert answers["r7"].error.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert "nobody" in answers["r7"].error.message
    for i in set(range(40)) - {7}:
        assert list(answers[f"r{i}"].response.outputs[0].shape) == [1 + i % 5, 4, 16, 16]


def test_a_stream_answers_while_its_requests_still_come(shared: ServerProcess) -> None:
    first_answered = threading.Event()

    def requests() -> Iterator[Any]:
        yield wire_request("first")
        assert first_answered.wait(120)
        yield wire_request("second")

    with grpc.insecure_channel(shared.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        seen = []
        for answer in stub.InferStream(requests()):
            seen.append(answer.request_id)
            first_answered.set()

    assert seen == ["first", "second"]


@pytest.fixture(scope="module")
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the model ``slow``, of some tens of milliseconds a row, whose batches queue."""
    folder = tmp_path_factory.mktemp("slow")
    server = ServerProcess(folder / "store", BRAID_SIDE_BY_SIDE="false").start()
    yield server.register({"slow": small_cnn(folder / "slow.onnx", branches=8, size=192)})
    assert server.stop() == 0


def test_a_deadline_that_passes_in_the_queue_ends_the_request(one_at_a_time: ServerProcess) -> None:
    server = one_at_a_time
    x = np.zeros((84, 3, 192, 192), np.float32)
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        busy = pool.submit(_infer, server.address, "slow", x)
        until(lambda: server.metric("braid_queue_depth_rows", model="slow"))
        with pytest.raises(DeadlineExceeded):
            client.infer("slow", {"x": x[:1]}, timeout_s=0.05)
        assert len(busy.result()) == 84

    assert server.metric("braid_queue_depth_rows", model="slow") == 0


def test_a_cancelled_call_leaves_and_its_neighbour_is_answered(
    one_at_a_time: ServerProcess,
) -> None:
    server = one_at_a_time
    x = np.zeros((84, 3, 192, 192), np.float32)
    one = x[:1]
    with ThreadPoolExecutor(2) as pool, grpc.insecure_channel(server.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        waiting = partial(server.metric, "braid_queue_depth_requests", model="slow")
        firsts = [pool.submit(_infer, server.address, "slow", x)]

        def has_begun() -> bool:
            if firsts[-1].done():  # before it was seen: this process had no core meanwhile
                firsts[-1].result()
                firsts.append(pool.submit(_infer, server.address, "slow", x))
            return server.metric("braid_queue_depth_rows", model="slow") > 0 == waiting()

        until(has_begun)
        tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=one.shape, data=one.tobytes())
        doomed = stub.Infer.future(inference_pb2.InferRequest(model="slow", inputs=[tensor]))
        neighbour = pool.submit(_infer, server.address, "slow", one)
        until(lambda: neighbour.done() or waiting() == 2)
        assert not neighbour.done(), "it was to wait behind the first"
        doomed.cancel()

        assert len(firsts[-1].result()) == 84
        assert len(neighbour.result()) == 1

    until(lambda: server.metric("braid_requests_total", model="slow", outcome="CANCELLED"))


def test_deleting_under_load_answers_or_says_not_found(
    shared: ServerProcess, models: dict[str, Path]
) -> None:
    with shared.client() as client:
        client.register("doomed", models["cnn"], batch_sizes=[1], planner="sequential", wait=True)
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(_outcome, shared.address, "doomed") for _ in range(100)]
            assert calls[0].result() == "OK"
            client.delete("doomed")
            outcomes = {call.result() for call in calls}

    assert outcomes <= {"OK", "ModelNotFound"}


def _infer(address: str, model: str, x: np.ndarray) -> np.ndarray:
    with Client(address) as client:
        return client.infer(model, {"x": x}, timeout_s=120).outputs["y"]


def _outcome(address: str, model: str) -> str:
    try:
        _infer(address, model, X)
    except Exception as error:
        return type(error).__name__
    return "OK"
