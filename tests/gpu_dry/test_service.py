"""``braid serve`` on the device in software: a sticky error of CUDA replaces the worker."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from braid_client import Unavailable
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.server_process import BRAID, ServerProcess

GPU = "cuda:0"
ROW = {"x": np.ones((1, 3, 16, 16), np.float32)}


@pytest.mark.timeout(900)
def test_a_sticky_error_replaces_the_worker_once(tmp_path: Path) -> None:
    """The replay that finds the file removes it, and its process has lost the device."""
    lost = tmp_path / "lost"
    server = ServerProcess(
        tmp_path / "store", command=BRAID, BRAID_DEVICES=GPU, CUDA_DRY_STICKY=str(lost)
    ).start()
    with server.client() as client:
        client.register("cnn", small_cnn(tmp_path / "cnn.onnx"), batch_sizes=[1], wait=True)
        client.infer("cnn", ROW)
        assert server.metric("braid_worker_restarts_total", device=GPU) == 0

        def answers() -> bool:
            with contextlib.suppress(Unavailable):
                client.infer("cnn", ROW)
                return True
            return False

        lost.touch()
        until(lambda: not lost.exists() or not answers())
        until(answers)

    restarts = server.metric("braid_worker_restarts_total", device=GPU, reason="device_lost")
    assert restarts == server.metric("braid_worker_restarts_total", device=GPU) == 1
    assert "an illegal memory access was encountered" in server.log
    assert server.stop() == 0
