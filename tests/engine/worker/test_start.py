"""A worker that is still loading its libraries, and the end of the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.clock import until

LOADS_FOR_EVER = """
import os, pathlib, time
pathlib.Path(os.environ["LOADING"]).touch()
time.sleep(600)
"""

STARTS_A_WORKER = """
import os, subprocess, sys, time
from braid.core.child_process import python_command
numbers = ("link-fd", "control-fd", "arena-fd")
arguments = [f"--{name}=1" for name in numbers]
worker = subprocess.Popen([
    *python_command(sys.argv[1], *arguments), f"--parent={os.getpid()}", "--options={}",
])
print(worker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("module", ["braid.engine.worker.process.main", "braid.compiler.process"])
def test_a_worker_that_is_loading_torch_ends_with_the_server(module: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(LOADS_FOR_EVER)
    loading = tmp_path / "loading"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_A_WORKER, module],
        env={**os.environ, "PYTHONPATH": path, "LOADING": str(loading)},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        worker = psutil.Process(int(server.stdout.readline()))
        until(loading.exists)
        server.send_signal(signal.SIGKILL)

    _, alive = psutil.wait_procs([worker], timeout=120)
    assert not alive
