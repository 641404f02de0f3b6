"""One server of two ingress processes and real clients: as with one process, from outside."""

from __future__ import annotations

import os
import queue
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.braid.v1 import admin_pb2, inference_pb2, inference_pb2_grpc
from server.security.tokens import new_token
from tests.server.service import ServerProcess
from tests.server.small_models import identity

ADMIN, INFER = new_token(), new_token()
X = np.arange(3, dtype=np.float32).reshape(1, 3)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("ingress")
    (folder / "admin").write_text(ADMIN)
    server = ServerProcess(
        folder / "store",
        BRAID_INGRESS="2",
        BRAID_ADMIN_TOKEN_FILE=str(folder / "admin"),
        BRAID_INFER_TOKEN=INFER,
        BRAID_SYSTEM_SHARED_MEMORY="true",
        BRAID_SPARE_WORKER="false",
    ).start()
    server.import_ahead(model := identity(folder / "id.onnx"))
    with server.client() as client:
        client.register("id", model, planner="sequential", wait=True)
    yield server
    if server.process.poll() is None:
        server.kill_everything()


def pids(server: ServerProcess) -> list[int]:
    """Of the ingress processes in service."""
    newest = dict(re.findall(r"(ingress-\d) up, process (\d+)", server.log))
    return [int(pid) for _, pid in sorted(newest.items())]


def connections(server: ServerProcess, pid: int) -> int:
    port = int(server.address.rpartition(":")[2])
    found = psutil.Process(pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port for c in found)


def connect_to(server: ServerProcess, pid: int, opened: ExitStack) -> grpc.Channel:
    """A connection that one of the processes has taken."""
    for _ in range(100):
        before = connections(server, pid)
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = opened.enter_context(grpc.insecure_channel(server.address, options))
        grpc.channel_ready_future(channel).result(timeout=10)
        if connections(server, pid) > before:
            return channel
    raise AssertionError("the kernel never chose it")


def call(channel: grpc.Channel, x: np.ndarray = X, **options: Any) -> Any:
    """A call under way."""
    tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=x.shape, data=x.tobytes())
    request = inference_pb2.InferRequest(model="id", inputs=[tensor])
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    return stub.Infer.future(request, metadata=tuple(bearer(INFER).items()), **options)


@contextmanager
def device_stands_still(server: ServerProcess) -> Iterator[None]:
    os.kill(server.worker_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.worker_pid, signal.SIGCONT)


def waiting(server: ServerProcess) -> float:
    return server.metric("braid_queue_depth_requests", model="id")


def until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_both_processes_answer_for_one_owner(server: ServerProcess) -> None:
    before = server.metric("braid_requests_total", model="id", outcome="OK")
    with ExitStack() as opened:
        channels = [connect_to(server, pid, opened) for pid in pids(server)]
        answers = [call(channel).result() for channel in channels * 5]
        assert server.metric("braid_ingress_connections", process="ingress-0") >= 1
        assert server.metric("braid_ingress_connections", process="ingress-1") >= 1
        health = health_pb2_grpc.HealthStub(channels[0])
        status = health.Check(health_pb2.HealthCheckRequest(service="id")).status
        service = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
        delete: Any = channels[1].unary_unary(f"/{service}/DeleteModel")
        forged = (*bearer(INFER).items(), ("braid-role", "admin"))
        for metadata, code in (
            (forged, grpc.StatusCode.PERMISSION_DENIED),
            ((("authorization", f"Bearer {new_token()}"),), grpc.StatusCode.UNAUTHENTICATED),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                delete(b"", metadata=metadata)
            assert refused.value.code() is code
    assert all(answer.outputs[0].data == X.tobytes() for answer in answers)
    assert status == health_pb2.HealthCheckResponse.SERVING
    assert server.metric("braid_requests_total", model="id", outcome="OK") == before + 10
    assert server.metric("braid_ingress_up") == 2
    assert server.metric("braid_ingress_cpu_seconds_total", process="ingress-0") > 0


def test_cancelled_and_late_requests_leave_the_queue_at_once(server: ServerProcess) -> None:
    with ExitStack() as opened:
        channels = [connect_to(server, pid, opened) for pid in pids(server)]
        with device_stands_still(server):
            kept = [call(channel) for channel in channels * 2]
            until(lambda: waiting(server) == 2)  # two more are with the device
            cancelled, late = call(channels[0]), call(channels[1], timeout=0.3)
            until(lambda: waiting(server) == 4)
            cancelled.cancel()
            assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            until(lambda: waiting(server) == 2)
        assert [each.code() for each in kept] == [grpc.StatusCode.OK] * 4


def test_a_stream_is_answered_in_order_and_shared_memory_serves_every_connection(
    server: ServerProcess,
) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    path = Path(f"/dev/shm/braid_ingress_{os.getpid()}")
    path.write_bytes(X.tobytes())
    given = triton.InferInput("x", [1, 3], "FP32")
    try:
        with ExitStack() as opened:
            clients = [
                opened.enter_context(triton.InferenceServerClient(server.address))
                for _ in range(8)  # together they have several connections
            ]
            clients[0].register_system_shared_memory(
                "region", f"/{path.name}", X.nbytes, headers=bearer(INFER)
            )
            given.set_shared_memory("region", X.nbytes)
            for client in clients:
                result = client.infer("id", [given], headers=bearer(INFER))
                np.testing.assert_array_equal(result.as_numpy("y"), X)
            given = triton.InferInput("x", [1, 3], "FP32")
            stream = clients[1]
            stream.start_stream(
                lambda result, error: answers.put((result, error)), headers=bearer(INFER)
            )
            for number in range(50):
                given.set_data_from_numpy(X + number)
                stream.async_stream_infer("id", [given], request_id=str(number))
            for number in range(50):
                result, error = answers.get(timeout=10)
                assert error is None
                assert result.get_response().id == str(number)
                np.testing.assert_array_equal(result.as_numpy("y"), X + number)
            stream.stop_stream()
    finally:
        path.unlink()


def test_killed_under_load_it_takes_its_own_connections_only(server: ServerProcess) -> None:
    victim, other = pids(server)
    outcomes: dict[int, Counter[str]] = {victim: Counter(), other: Counter()}
    is_over = threading.Event()

    def load(channel: grpc.Channel, pid: int) -> None:
        while not is_over.is_set():
            outcomes[pid][call(channel, timeout=10, wait_for_ready=True).code().name] += 1

    with ExitStack() as opened, ThreadPoolExecutor() as pool:
        channels = [(connect_to(server, pid, opened), pid) for pid in (victim, other) * 2]
        running = [pool.submit(load, *each) for each in channels]
        try:
            until(lambda: all(counts["OK"] > 20 for counts in outcomes.values()))
            os.kill(victim, signal.SIGKILL)
            until(lambda: server.metric("braid_ingress_up") == 2 and victim not in pids(server))
            answered = outcomes[victim]["OK"]
            until(lambda: outcomes[victim]["OK"] > answered + 20)
        finally:
            is_over.set()
        for each in running:
            each.result(timeout=10)
    assert set(outcomes[other]) == {"OK"}
    assert set(outcomes[victim]) <= {"OK", "UNAVAILABLE"}
    restarts = server.metric("braid_ingress_restarts_total", process="ingress-0", reason="killed")
    assert restarts == 1
    assert server.http("/readyz") == "ready\n"


def test_on_sigterm_accepted_requests_end_and_late_ones_are_told(server: ServerProcess) -> None:
    found = pids(server)
    with ExitStack() as opened:
        channels = [connect_to(server, pid, opened) for pid in found]
        with device_stands_still(server):
            accepted = [call(channel) for channel in channels * 3]
            until(lambda: waiting(server) == 4)
            server.terminate()
            until(lambda: "stopping" in server.log)
            assert call(channels[0]).code() is grpc.StatusCode.UNAVAILABLE
            health = health_pb2_grpc.HealthStub(channels[1])
            status = health.Check(health_pb2.HealthCheckRequest()).status
        assert [each.code() for each in accepted] == [grpc.StatusCode.OK] * 6
    assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert server.stop() == 0
    assert not any(map(psutil.pid_exists, found))


@pytest.mark.slow
def test_killed_the_owner_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", BRAID_INGRESS="2").start()
    found = pids(server)
    opened_sockets = psutil.Process(server.process.pid).net_connections("unix")
    sockets = {str(each.laddr) for each in opened_sockets}
    folders = {Path(each).parent for each in sockets if each.endswith("/owner.sock")}
    assert len(folders) == 1
    with ExitStack() as opened:
        channels = [connect_to(server, pid, opened) for pid in found]
        watches = [
            health_pb2_grpc.HealthStub(each).Watch(health_pb2.HealthCheckRequest())
            for each in channels
        ]
        for watch in watches:
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.kill_everything()
        for watch in watches:
            with pytest.raises(grpc.RpcError) as refused:
                next(watch)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    until(lambda: not any(map(psutil.pid_exists, found)))
    until(lambda: not any(map(Path.exists, folders)))


@pytest.mark.slow
def test_killed_again_and_again_nothing_is_mixed_up_and_nothing_left(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", BRAID_INGRESS="2", BRAID_SPARE_WORKER="false")
    server.start()
    server.import_ahead(model := identity(tmp_path / "id.onnx"))
    with server.client() as client:
        client.register("id", model, batch_sizes=[1, 4], planner="sequential", wait=True)
    outcomes: Counter[str] = Counter()
    is_over = threading.Event()

    def load(seed: int) -> None:
        rng = np.random.default_rng(seed)
        options = (("grpc.use_local_subchannel_pool", 1),)
        while not is_over.is_set():
            with grpc.insecure_channel(server.address, options) as channel:
                for _ in range(50):
                    x = rng.random((int(rng.integers(1, 5)), 3), np.float32)
                    sent = call(channel, x, timeout=10, wait_for_ready=True)
                    if rng.random() < 0.1:
                        sent.cancel()
                    elif sent.code() is grpc.StatusCode.OK:
                        right = sent.result().outputs[0].data == x.tobytes()
                        outcomes["OK" if right else "WRONG"] += 1
                    else:
                        outcomes[sent.code().name] += 1

    owner = psutil.Process(server.process.pid)
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(load, seed) for seed in range(8)]
        try:
            until(lambda: outcomes["OK"] > 100)
            descriptors = owner.num_fds()
            for number in range(8):
                os.kill(victim := pids(server)[number % 2], signal.SIGKILL)
                until(lambda victim=victim: victim not in pids(server))
        finally:
            is_over.set()
        for each in running:
            each.result(timeout=20)
    assert set(outcomes) <= {"OK", "UNAVAILABLE"}
    until(lambda: waiting(server) == 0)
    until(lambda: owner.num_fds() <= descriptors + 4)
    assert server.stop() == 0
    assert "Traceback" not in server.log
    assert "internal error" not in server.log
