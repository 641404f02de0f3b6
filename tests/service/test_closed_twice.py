"""A server closes each descriptor once, whatever is registered, cancelled, killed and deleted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.clock import until
from tests.closed_twice import ClosedTwice
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess

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
