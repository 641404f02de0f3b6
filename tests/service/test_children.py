import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from braid.core.child_process import child_environment
from braid_client import Client, Job, ModelState, ResourceExhausted
from tests.clock import until
from tests.closed_twice import ClosedTwice
from tests.models.small import small_cnn, written
from tests.service.server_process import BRAID, ServerProcess

KINDS = (
    "braid.engine.worker.process.main",
    "braid.compiler.process",
    "braid.engine.importer.sandbox",
)
"""Modules that run as children."""

SECRETS = {
    "BRAID_ADMIN_TOKEN": "a" * 40,
    "BRAID_INFER_TOKEN": "i" * 40,
    "AWS_SECRET_ACCESS_KEY": "s" * 40,
    "HF_TOKEN": "h" * 40,
    "DATABASE_URL": "postgres://user:password@host",
    "CUDA_SECRET": "c" * 40,
}


def outer_product(path: Path) -> Path:
    """x [n] -> the sum of x x^T, which is as large as n squared."""
    text = """(float[n] x) => (float y) {
      column = Unsqueeze(x, axis)  product = Mul(column, x)
      y = ReduceSum<keepdims=0>(product) }"""
    return written(path, text, axis=[1])


def test_an_environment_for_children_holds_no_secret_but_what_libraries_need() -> None:
    needed = {"PATH": "/bin", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1", "LC_ALL": "C"}

    assert child_environment(needed | SECRETS) == needed


@pytest.mark.ci
def test_children_know_no_secrets_take_no_more_than_allowed_and_end_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    server = ServerProcess(
        tmp_path / "store", command=BRAID, BRAID_WORKER_MEMORY_BYTES="1GiB"
    ).start()
    try:
        outer = outer_product(tmp_path / "outer.onnx")
        with server.register({"outer": outer}).client() as client:
            worker = server.worker_pid
            with pytest.raises(ResourceExhausted, match="BRAID_WORKER_MEMORY_BYTES"):
                client.infer("outer", {"x": np.ones(40_000, np.float32)})
            assert client.infer("outer", {"x": np.ones(9, np.float32)}).outputs["y"] == 81.0
            assert server.worker_pid == worker

            model = small_cnn(tmp_path / "cnn.onnx", branches=4, size=32)
            known = _environments_of_all_kinds(server, client.register("cnn", model))
        assert [sorted(each.keys() & SECRETS.keys()) for each in known] == [[]] * len(KINDS)
    finally:
        children = server.children
        for hung in (psutil.Process(server.worker_pid), server.bench):
            hung.send_signal(signal.SIGSTOP)  # it notices nothing by itself
        server.kill_everything()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive


def _environments_of_all_kinds(server: ServerProcess, job: Job) -> list[dict[str, str]]:
    """What a process of each kind was told, as they appear during a registration."""
    seen: dict[str, dict[str, str]] = {}

    def look() -> bool:
        for child in server.children:
            with suppress(psutil.NoSuchProcess):
                module = next((kind for kind in KINDS if kind in child.cmdline()), None)
                if module is not None and module not in seen and (known := child.environ()):
                    seen[module] = known
        return len(seen) == len(KINDS)

    until(look, why=lambda: (job, seen.keys()))
    return list(seen.values())


ROW = {"x": np.ones((1, 3, 16, 16), np.float32)}


@pytest.mark.ci
def test_a_server_closes_each_descriptor_once(tmp_path: Path) -> None:
    closed = ClosedTwice(tmp_path)
    with ServerProcess(
        tmp_path / "store",
        LD_PRELOAD=closed.environment["LD_PRELOAD"],
        CLOSED_TWICE=closed.environment["CLOSED_TWICE"],
    ) as server:
        with server.start().client() as client:
            model = small_cnn(tmp_path / "cnn.onnx")
            client.cancel_job(client.register("cancelled", model).id)
            client.register("cnn", model, batch_sizes=[1], wait=True)
            worker = server.worker_pid
            psutil.Process(worker).kill()
            until(lambda: server.worker_pid != worker)
            assert client.infer("cnn", ROW).outputs
            client.delete("cnn")
        assert server.stop() == 0

    assert closed.of(server.process.pid) == []


@pytest.mark.ci
def test_an_empty_server_ends_its_processes_stays_ready_and_takes_a_model(tmp_path: Path) -> None:
    relu = "(float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }"
    file = written(tmp_path / "net.onnx", relu)
    with ServerProcess(tmp_path / "store", command=BRAID).start() as server:
        first = psutil.Process(server.process.pid)
        until(lambda: not first.children(recursive=True))
        ready = server.http("/readyz")
        with Client(server.address) as client:
            job = client.register("net", file, batch_sizes=[1])
            until(lambda: client.model("net").state is ModelState.SERVING)
            answer = client.infer("net", {"x": np.array([[-1, 2, -3, 4]], np.float32)})
            client.cancel_job(job.id)
            processes = len(first.children(recursive=True))
            client.delete("net")
        until(lambda: not first.children(recursive=True))

    assert ready == "ready\n"
    assert answer.outputs["y"].tolist() == [[0, 2, 0, 4]]
    assert processes >= 2
