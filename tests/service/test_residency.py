import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from braid_client import Client, InvalidArgument, ModelState, RetryPolicy, Serving, Unavailable
from tests.clock import until
from tests.models.small import product
from tests.service.server_process import ServerProcess

SIZE = 2048  # of a matrix of 16 MiB
X = np.ones((1, SIZE), np.float32)
NAMES = [f"net-{number}" for number in range(6)]


def matrix(path: Path, factor: int, size: int = SIZE) -> Path:
    """y = factor * x, by a whole matrix; large for a model that is small to compute."""
    return product(path, np.eye(size, dtype=np.float32) * factor)


def register(
    client: Client, server: ServerProcess, name: str, file: Path, residency: str | None = None
) -> None:
    """Let a model serve; its schedule is not waited for, and not made."""
    server.import_ahead(file)
    job = client.register(name, file, batch_sizes=[1], residency=residency)
    until(lambda: client.model(name).state is ModelState.SERVING)
    client.cancel_job(job.id)


def answer(client: Client, name: str) -> float:
    return float(client.infer(name, {"x": X}).outputs["y"][0, 0])


def in_memory(server: ServerProcess) -> set[str]:
    lines = [
        line
        for line in server.http("/metrics").splitlines()
        if line.startswith("braid_model_loaded{") and line.endswith(" 1.0")
    ]
    return {line.partition('model="')[2].partition('"')[0] for line in lines}


@pytest.mark.ci
def test_a_model_on_demand_leaves_memory_when_idle_and_the_next_request_brings_it_back(
    server: ServerProcess, tmp_path: Path
) -> None:
    server.start()
    file = matrix(tmp_path / "net.onnx", 3)
    with server.client() as client:
        register(client, server, "net", file, residency="on-demand")
        client.set_serving("net", _with(client, idle_s=0.5))
        assert client.serving("net").residency == "on-demand"
        until(lambda: not in_memory(server))

        assert server.metric("braid_model_ready", model="net") == 1
        assert "next request loads it" in client.model("net").message
        assert answer(client, "net") == 3

        client.set_serving("net", _with(client, idle_s=0.5, refuses=True))
        until(lambda: not in_memory(server))
        with (
            Client(server.address, retry=RetryPolicy(max_attempts=1)) as hasty,
            pytest.raises(Unavailable, match="is being loaded, as it was not in memory"),
        ):
            answer(hasty, "net")
        until(lambda: in_memory(server) == {"net"})
        with pytest.raises(InvalidArgument, match="pinned, resident, on-demand"):
            client.set_serving("net", _with(client, residency="sometimes"))
        client.delete("net")


@pytest.mark.ci
def test_more_models_than_memory_has_room_for_all_answer_and_a_restart_loads_the_last_used(
    tmp_path: Path,
) -> None:
    with ServerProcess(
        tmp_path / "store", BRAID_WORKER_MEMORY_BYTES="640MiB", BRAID_RESTORE_SECONDS="0"
    ).start() as server:
        _use_more_than_fit(server, tmp_path)


def _use_more_than_fit(server: ServerProcess, tmp_path: Path) -> None:
    files = {name: matrix(tmp_path / f"{name}.onnx", n) for n, name in enumerate(NAMES, 1)}
    with server.client() as client:
        for name, file in files.items():
            register(client, server, name, file, residency="pinned" if name == NAMES[0] else None)
        with ThreadPoolExecutor(6) as callers:
            answers = list(callers.map(lambda name: answer(client, name), NAMES * 2))
        assert answers == list(range(1, len(NAMES) + 1)) * 2
        assert NAMES[0] in in_memory(server)
        assert 1 < len(in_memory(server)) < len(NAMES), "some had to leave"
        answer(client, NAMES[5])
    server.terminate()
    server.process.wait()
    order = json.loads((server.store / "order-of-use.json").read_text())
    assert order[0] == f"{NAMES[5]}/1"

    server.start()
    until(lambda: {NAMES[0], NAMES[5]} <= in_memory(server))
    with server.client() as client:
        assert [answer(client, name) for name in NAMES] == list(range(1, len(NAMES) + 1))


def _with(client: Client, **changes: Any) -> Serving:
    return replace(client.serving("net"), **changes)
