"""A server in a control group whose quota is below the machine's cores."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import psutil
import pytest

from braid_client import Client
from tests.control_groups import group_with_quota
from tests.models.small import small_cnn
from tests.service.server_process import FOR_TESTS, ServerProcess

CORES = os.sched_getaffinity(0)


@pytest.mark.ci
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_under_a_quota_of_one_cpu_one_unpinned_thread_computes(tmp_path: Path) -> None:
    model, x = small_cnn(tmp_path / "net.onnx"), np.ones((1, 3, 16, 16), np.float32)
    with group_with_quota(1.0) as group:
        enter = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        server = ServerProcess(tmp_path / "store", command=(*enter, *FOR_TESTS)).start()
        try:
            with Client(server.address) as client:
                client.register("net", model, batch_sizes=[1], planner="sequential", wait=True)
                client.infer("net", {"x": x})
            worker = psutil.Process(server.worker_pid)
            threads = [thread.id for thread in worker.threads()]
            environment = worker.environ()
            masks = {frozenset(os.sched_getaffinity(thread)) for thread in threads}
        finally:
            server.end()

    assert re.search(r" ready .*devices=.*:quota=1:.*:threads=1:", server.log)
    assert environment["GOMP_SPINCOUNT"] == "0"
    assert masks == {frozenset(CORES)}
