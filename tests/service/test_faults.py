import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from braid.engine.runtime.priority import NICENESS
from braid_client import Client, JobState, RetryPolicy
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.load import Load
from tests.service.server_process import ServerProcess, plans_by_size

MEASURING = (JobState.PROFILING, JobState.SCHEDULING, JobState.VERIFYING)

ROW = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)


Infer = Callable[..., Load]


def answered(client: Client) -> None:
    (y,) = client.infer("cnn", {"x": ROW}, timeout_s=120).outputs.values()
    assert y.shape == (1, 4, 16, 16)


@pytest.fixture
def inferring() -> Iterator[Infer]:
    """Begin to infer at an address, by so many clients."""
    with ExitStack() as opened:

        def begin(address: str, clients: int, pause_s: float = 0.0) -> Load:
            client = opened.enter_context(Client(address, retry=RetryPolicy(max_attempts=1)))
            return Load([partial(answered, client)] * clients, pause_s)

        yield begin


@pytest.mark.ci
def test_a_killed_worker_costs_the_requests_in_flight_and_no_measurement(
    server: ServerProcess, models: dict[str, Path], inferring: Infer
) -> None:
    with server.start().register({"cnn": models["cnn"]}, (1, 4), planner="").client() as client:
        plans = set[str]().union(*plans_by_size(client, "cnn", (1, 4)).values())
    measured = server.metric("braid_stage_measurements_total")
    load = inferring(server.address, clients=8)
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
    until(lambda: process.nice() == NICENESS, why=process.nice)
    process.kill()
    return process


@pytest.mark.ci
def test_a_registration_measures_in_a_process_that_gives_way_and_survives_its_death(
    braid: ServerProcess, models: dict[str, Path], inferring: Infer, tmp_path: Path
) -> None:
    model = small_cnn(tmp_path / "cnn.onnx", branches=3, size=32)
    braid.start().import_ahead(models["cnn"], model)
    with braid.client() as client:
        client.register("cnn", models["cnn"], batch_sizes=[1], planner="sequential", wait=True)
        load, killed = inferring(braid.address, clients=1, pause_s=0.05), None
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


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.ci)]
)
def test_a_signal_to_stop_loses_no_accepted_request(
    server: ServerProcess, models: dict[str, Path], inferring: Infer, number: signal.Signals
) -> None:
    server.start().register({"cnn": models["cnn"]}, (1, 4))
    load = inferring(server.address, clients=4)
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
    server.start().register({"slow": slow}, (4,))
    with server.client() as client, ThreadPoolExecutor(2) as pool:
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
    with (
        ServerProcess(tmp_path / "store", BRAID_SHUTDOWN_DELAY_SECONDS="3600").start() as server,
        server.register({"cnn": models["cnn"]}).client() as client,
    ):
        server.terminate()
        until(lambda: server.metric("braid_ready") == 0)

        assert len(client.infer("cnn", {"x": ROW}).outputs["y"]) == 1


def test_a_taken_port_is_refused_with_one_line(shared: ServerProcess, tmp_path: Path) -> None:
    port = shared.address.rsplit(":", 1)[1]
    second = ServerProcess(tmp_path / "other")

    with pytest.raises(AssertionError):
        second.start(grpc_port=port)

    assert second.process.wait(timeout=120) != 0
    assert "BRAID_GRPC_PORT" in second.log
    assert "Traceback" not in second.log
