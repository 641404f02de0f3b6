"""What a test run started ends with it, whatever ends the run."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests import ROOT
from tests.child_processes import VARIABLE

_RUN = """
import subprocess, sys
{starts}
server = "import subprocess; worker = subprocess.Popen(['sleep', '600'], start_new_session=True)"
server += "; print(worker.pid, flush=True); worker.wait()"
command = [sys.executable, "-I", "-c", server]
with start(command) as child:
    print(child.pid, child.stdout.readline(), flush=True)
    sys.stdin.read()
"""
_TESTS = """
from functools import partial
from tests.child_processes import kill_children_at_exit
kill_children_at_exit()
start = partial(subprocess.Popen, stdout=subprocess.PIPE, text=True, start_new_session=True)
"""
_BENCHMARKS = "from benchmarks.load.children import running as start"


@pytest.mark.parametrize("starts", [_TESTS, _BENCHMARKS], ids=["tests", "benchmarks"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_and_their_workers_end_with_the_run_that_is_killed(
    number: signal.Signals, starts: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with subprocess.Popen(
        [sys.executable, "-c", _RUN.format(starts=starts)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as run:
        assert run.stdout is not None
        started = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
        assert len(started) == 2
        run.send_signal(number)
        _, alive = psutil.wait_procs(started, timeout=60)

    assert alive == []
