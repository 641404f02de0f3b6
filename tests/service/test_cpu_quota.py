import json
import os
import re
from pathlib import Path

import numpy as np
import psutil
import pytest

from braid.server.cli.main import main
from braid_client import Client
from tests.control_groups import group_with_quota, within
from tests.models.small import small_cnn
from tests.service.server_process import FOR_TESTS, ServerProcess

CORES = os.sched_getaffinity(0)


@pytest.mark.ci
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_under_a_quota_of_one_cpu_one_thread_computes_and_all_keep_to_one_core(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = small_cnn(tmp_path / "net.onnx"), np.ones((1, 3, 16, 16), np.float32)
    with group_with_quota(1.0) as group:
        command = (*within(group), *FOR_TESTS)
        with ServerProcess(tmp_path / "store", command=command).start() as server:
            with Client(server.address) as client:
                client.register("net", model, batch_sizes=[1], planner="sequential", wait=True)
                client.infer("net", {"x": x})
            worker = psutil.Process(server.worker_pid)
            environment = worker.environ()
            family = psutil.Process(server.process.pid)
            masks = {
                frozenset(os.sched_getaffinity(thread.id))
                for process in (family, *family.children(recursive=True))
                for thread in process.threads()
            }
            assert main(["health", "--json", "--address", server.address]) == 0
            told = json.loads(capsys.readouterr().out)
            counted = server.metric("braid_cpu_periods_total")
            allowed = server.metric("braid_cpu_allowance")

    assert re.search(r" ready .*devices=.*:quota=1:.*:threads=1:", server.log)
    assert told["status"] == "serving"
    assert (told["allowance"]["cpus"], told["allowance"]["cores"]) == (1.0, len(CORES))
    assert 0 < told["allowance"]["periods"] <= counted
    assert 0 < told["allowance"]["memory_budget_bytes"] < told["allowance"]["memory_bytes"]
    assert ":threads=1:" in told["device_keys"][0]
    assert allowed == 1
    assert environment["GOMP_SPINCOUNT"] == "0"
    ((core,),) = masks
    assert core in CORES
