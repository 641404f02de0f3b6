"""A server without models holds no libraries for them, and takes the next model all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from braid_client import Client, ModelState
from tests.clock import until
from tests.models.small import written
from tests.service.server_process import BRAID, ServerProcess


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
