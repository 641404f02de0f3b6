"""What may crash without what: workers, whole servers, and clients that are cut off."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from braid_client import Client, JobState
from braid_client.wire import inference_pb2, inference_pb2_grpc
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.conftest import ended
from tests.service.server_process import BRAID, ServerProcess, plans_by_size

MEASURING = (JobState.PROFILING, JobState.SCHEDULING, JobState.VERIFYING)

ROW = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)


class Load:
    """Clients that infer until told to stop; counts how each call ended."""

    def __init__(self, address: str, clients: int, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s  # of each client after each call
        self.outcomes: Counter[str] = Counter()
        self._stop = threading.Event()
        self._ended = threading.Condition()
        self._pool = ThreadPoolExecutor(clients)
        self._running = [self._pool.submit(self._loop, address) for _ in range(clients)]

    def _loop(self, address: str) -> None:
        tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=ROW.shape, data=ROW.tobytes())
        request = inference_pb2.InferRequest(model="cnn", inputs=[tensor])
        with grpc.insecure_channel(address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            while not self._stop.wait(self._pause_s):
                try:
                    response = stub.Infer(request, timeout=120)
                    outcome = "OK" if len(response.outputs[0].data) == 4096 else "WRONG"
                except grpc.RpcError as error:
                    outcome = error.code().name
                    time.sleep(0.01)
                with self._ended:
                    self.outcomes[outcome] += 1
                    self._ended.notify_all()

    def until(self, outcome: str, more: int = 1) -> None:
        """Wait until so many more calls than now have ended like this."""
        with self._ended:
            wanted = self.outcomes[outcome] + more
            assert self._ended.wait_for(lambda: self.outcomes[outcome] >= wanted, 120), outcome

    def stop(self) -> Counter[str]:
        """End all clients; raises if one of them failed otherwise than by a status."""
        self._stop.set()
        for running in self._running:
            running.result(timeout=180)
        self._pool.shutdown()
        return self.outcomes


@pytest.mark.ci
def test_a_killed_worker_costs_the_requests_in_flight_and_no_measurement(
    server: ServerProcess, models: dict[str, Path]
) -> None:
    server.start().import_ahead(models["cnn"])
    with server.client() as client:
        client.register("cnn", models["cnn"], batch_sizes=[1, 4], wait=True)
        plans = set[str]().union(*plans_by_size(client, "cnn", (1, 4)).values())
    measured = server.metric("braid_stage_measurements_total")
    load = Load(server.address, clients=8)
    load.until("OK")

    worker = server.worker_pid
    os.kill(worker, signal.SIGSTOP)  # so that it is killed with requests in it
    until(lambda: server.metric("braid_queue_depth_requests"))
    os.kill(worker, signal.SIGKILL)
    load.until("UNAVAILABLE")
    load.until("OK", 100)
    outcomes = load.stop()

    assert set(outcomes) == {"OK", "UNAVAILABLE"}
    assert server.process.poll() is None
    assert server.metric("braid_worker_restarts_total") == 1
    assert server.metric("braid_stage_measurements_total") == measured
    with server.client() as client:
        # Whichever batch size is faster for one row, its schedule survived.
        assert client.infer("cnn", {"x": ROW}).plan_id in plans


def kill_once_it_gives_way(process: psutil.Process) -> psutil.Process:
    until(lambda: process.nice() == 10, why=process.nice)
    process.kill()
    return process


@pytest.mark.ci
def test_a_registration_measures_in_a_process_that_gives_way_and_survives_its_death(
    braid: ServerProcess, models: dict[str, Path], tmp_path: Path
) -> None:
    model = small_cnn(tmp_path / "cnn.onnx", branches=3, size=32)
    braid.start().import_ahead(models["cnn"], model)
    with braid.client() as client:
        client.register("cnn", models["cnn"], batch_sizes=[1], planner="sequential", wait=True)
        load, killed = Load(braid.address, clients=1, pause_s=0.05), None
        try:
            job = client.register("other", model, batch_sizes=[1, 8])
            for state in client.watch_job(job.id):
                if killed is None and state.state in MEASURING:
                    killed = kill_once_it_gives_way(braid.bench)
        finally:
            outcomes = load.stop()
        schedules = client.model("other").schedules

    assert killed is not None
    assert state.state is JobState.READY
    assert [schedule.batch_size for schedule in schedules] == [1, 8]
    assert set(outcomes) == {"OK"}, "those who serve have not noticed"
    assert braid.metric("braid_worker_restarts_total") == 0
    assert braid.bench.pid != killed.pid


@pytest.fixture
def one_thread(tmp_path: Path) -> Iterator[ServerProcess]:
    """``braid serve`` on one core: no distance between cores that changes what is reused."""
    yield from ended(ServerProcess(tmp_path / "store", command=BRAID, BRAID_THREADS="1"))


@pytest.mark.ci
def test_a_killed_server_finishes_the_registration_after_its_restart(
    one_thread: ServerProcess, tmp_path: Path
) -> None:
    braid, model = one_thread, small_cnn(tmp_path / "cnn.onnx", branches=4, size=48)
    braid.start()
    with braid.client() as client:
        job = client.register("cnn", model, batch_sizes=[1, 8])
        for state in client.watch_job(job.id):
            if state.done >= 5 or state.state is JobState.SCHEDULING:
                break
    logs = (tmp_path / "store" / "measurements").glob
    until(lambda: sum(len(log.read_bytes().splitlines()) for log in logs("*.log")) >= 5)
    children = psutil.Process(braid.process.pid).children(recursive=True)
    braid.kill_everything()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive, "the front end's children must end with it"

    braid.start()
    with braid.client() as client:
        for state in client.watch_job(job.id):
            last = state
        assert last.state is JobState.READY
        client.infer("cnn", {"x": np.zeros((1, 3, 48, 48), np.float32)})

    assert braid.metric("braid_stage_measurements_reused_total") >= 5
    assert list((braid.store / "uploads").iterdir()) == []


@pytest.mark.ci
def test_a_restarted_server_serves_the_same_plans_and_measures_nothing(
    server: ServerProcess, models: dict[str, Path]
) -> None:
    server.start().import_ahead(models["cnn"])
    with server.client() as client:
        client.register("cnn", models["cnn"], batch_sizes=[1, 4], wait=True)
        before = client.infer("cnn", {"x": ROW})
        plans = plans_by_size(client, "cnn", (1, 4))
    assert server.stop() == 0

    server.start()
    with server.client() as client:
        after = client.infer("cnn", {"x": ROW})
        assert plans_by_size(client, "cnn", (1, 4)) == plans

    assert before.plan_id in plans[before.batch_size]
    assert after.plan_id in plans[after.batch_size]
    np.testing.assert_allclose(after.outputs["y"], before.outputs["y"], atol=1e-4)
    assert server.metric("braid_stage_measurements_total") == 0


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.ci)]
)
def test_a_signal_to_stop_loses_no_accepted_request(
    server: ServerProcess, models: dict[str, Path], number: signal.Signals
) -> None:
    server.start().import_ahead(models["cnn"])
    with server.client() as client:
        client.register("cnn", models["cnn"], batch_sizes=[1, 4], planner="sequential", wait=True)
    load = Load(server.address, clients=4)
    load.until("OK", 20)

    if number == signal.SIGHUP:  # a terminal that is closed sends it to all of its processes
        os.killpg(server.process.pid, number)
    else:
        server.terminate()
    assert server.process.wait(timeout=120) == 0
    load.until("UNAVAILABLE", 4)
    outcomes = load.stop()

    # A call that came after the port closed was never accepted: UNAVAILABLE, and nothing else.
    assert set(outcomes) <= {"OK", "UNAVAILABLE"}
    assert "internal error" not in server.log


@pytest.mark.ci
def test_a_request_in_flight_at_sigterm_is_answered(server: ServerProcess, tmp_path: Path) -> None:
    slow = small_cnn(tmp_path / "slow.onnx", branches=16, size=192)
    x = np.zeros((64, 3, 192, 192), np.float32)
    server.start().import_ahead(slow)
    with server.client() as client:
        client.register("slow", slow, batch_sizes=[4], planner="sequential", wait=True)
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(_infer_once, server.address, "slow", x)
            until(
                lambda: (
                    server.metric("braid_queue_depth_rows")  # others of its rows are running
                    and not server.metric("braid_queue_depth_requests")
                )
            )
            waiting = pool.submit(client.infer, "slow", {"x": x[:4]})
            until(lambda: running.done() or server.metric("braid_queue_depth_requests"))
            assert not running.done(), "it was to keep the other one waiting"
            server.terminate()
            assert running.result(timeout=120) == len(x)
            assert len(waiting.result(timeout=120).outputs["y"]) == 4

    assert server.process.wait(timeout=120) == 0


def _infer_once(address: str, model: str, x: np.ndarray) -> int:
    with Client(address) as client:
        return len(client.infer(model, {"x": x}).outputs["y"])


@pytest.mark.ci
def test_within_the_shutdown_delay_it_is_not_ready_and_answers(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    server = ServerProcess(tmp_path / "store", BRAID_SHUTDOWN_DELAY_SECONDS="3600").start()
    try:
        server.import_ahead(models["cnn"])
        with server.client() as client:
            client.register("cnn", models["cnn"], batch_sizes=[1], planner="sequential", wait=True)
            server.terminate()
            until(lambda: server.metric("braid_ready") == 0)

            assert len(client.infer("cnn", {"x": ROW}).outputs["y"]) == 1
    finally:
        server.end()


@pytest.mark.ci
def test_a_second_server_on_one_store_is_refused_with_one_line(server: ServerProcess) -> None:
    server.start()
    second = ServerProcess(server.store)
    second.log_path = server.store.with_name("second.log")

    with pytest.raises(AssertionError):
        second.start()

    assert second.process.wait(timeout=120) != 0
    assert "in use by another server" in second.log
    assert "Traceback" not in second.log


def test_a_taken_port_is_refused_with_one_line(shared: ServerProcess, tmp_path: Path) -> None:
    port = shared.address.rsplit(":", 1)[1]
    second = ServerProcess(tmp_path / "other")

    with pytest.raises(AssertionError):
        second.start(grpc_port=port)

    assert second.process.wait(timeout=120) != 0
    assert "BRAID_GRPC_PORT" in second.log
    assert "Traceback" not in second.log


@pytest.mark.ci
def test_kills_of_whatever_measures_and_plans_end_a_registration_ready(
    braid: ServerProcess, tmp_path: Path
) -> None:
    model = small_cnn(tmp_path / "cnn.onnx", branches=3, size=32)
    braid.start().import_ahead(model)
    victims = [
        lambda: psutil.Process(braid.worker_pid),
        lambda: braid.bench,
        lambda: braid.bench,
    ]
    details = set()
    with braid.client() as client:
        job = client.register("cnn", model, batch_sizes=[1])
        for state in client.watch_job(job.id):
            details.add(state.detail)
            # A fast machine may have measured all stages before the first look.
            measures = state.state in (JobState.PROFILING, JobState.SCHEDULING, JobState.VERIFYING)
            if victims and measures and is_killed(victims[-1]):
                victims.pop()
        client.infer("cnn", {"x": np.zeros((1, 3, 32, 32), np.float32)})

    assert not victims
    assert state.state is JobState.READY, state.message
    assert (
        "batch size 1: trying again (2nd try): the device worker died while it had this request"
    ) in details


def is_killed(find: Callable[[], psutil.Process | None]) -> bool:
    """Kill a process; False if it is not there, or no more."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process := find():
            process.kill()
            return True
    return False
