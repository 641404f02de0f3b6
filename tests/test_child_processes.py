"""What a test run started ends with it, whatever ends the run."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

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


_NUMBERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("starts", [_TESTS, _BENCHMARKS], ids=["tests", "benchmarks"])
def test_servers_and_their_workers_end_with_the_run_that_is_killed(starts: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with ExitStack() as stack:
        runs = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _RUN.format(starts=starts)],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
            for _ in _NUMBERS
        ]
        lines = [run.stdout.readline() for run in runs if run.stdout is not None]
        started = [psutil.Process(int(pid)) for line in lines for pid in line.split()]
        assert len(started) == 2 * len(_NUMBERS)
        for run, number in zip(runs, _NUMBERS, strict=True):
            run.send_signal(number)
        _, alive = psutil.wait_procs(started, timeout=60)

    assert alive == []
