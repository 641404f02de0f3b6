import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.clock import until
from tests.service.server_process import ServerProcess

ROW = np.zeros((1, 3, 16, 16), dtype=np.float32)
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def device_names() -> tuple[str, str]:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    return f"cpu:{first}", f"cpu:{second}"


@NO_GPU
def test_a_server_for_a_gpu_that_is_not_there_says_so_in_one_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "braid.server.cli.main", "serve", "--devices", "cuda:0",
         "--store", str(tmp_path), "--grpc-port", "0", "--http-port", "0"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip

    assert ended.returncode != 0
    (line,) = ended.stderr.strip().splitlines()
    assert "cuda:0" in line
    assert "CUDA" in line or "NVIDIA driver" in line  # as this build of torch says


@pytest.mark.ci
@NO_GPU
def test_the_cpu_serves_if_a_gpu_is_not_there(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", BRAID_DEVICES="cuda:0,cpu").start()
    try:
        assert server.http("/readyz").strip() == "ready"
        assert "cuda:0</h2>" not in server.http("/console/devices")
    finally:
        assert server.stop() == 0
    (line,) = [each for each in server.log.splitlines() if "left out" in each]
    assert "cuda:0" in line


def restarts(server: ServerProcess, device: str) -> float:
    """How many workers of a device were replaced since they were killed."""
    return server.metric("braid_worker_restarts_total", device=device, reason="killed")


@pytest.mark.ci
@TWO_CORES
def test_two_devices_serve_one_model_each_with_schedules_of_its_own(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    first, second = device_names()
    server = ServerProcess(tmp_path / "store", BRAID_DEVICES=f"{first},{second}").start()
    try:
        with server.register({"cnn": models["cnn"]}).client() as client:
            planned = {plan.device for plan in client.model("cnn").schedules}
            document, _ = client.schedule("cnn", 1, second)
            client.infer("cnn", {"x": ROW})
            os.kill(server.worker_of(first), signal.SIGKILL)
            for _ in range(20):
                client.infer("cnn", {"x": ROW})
                time.sleep(0.01)
        page = server.http("/console/devices")
        until(lambda: restarts(server, first) == 1, why=lambda: server.log)
    finally:
        assert server.stop() == 0
    assert planned == {first, second}
    assert json.dumps(document).count("threads=1") >= 1
    assert first in page
    assert second in page
