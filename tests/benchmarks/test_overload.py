"""What the overload benchmark compares with, and what it looks at."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from benchmarks.overload import Memory, perfect_wait_s
from tests.clock import until

SERVICE_S = 0.01


def test_waits_of_a_perfect_queue_are_those_of_queueing_theory() -> None:
    light, heavy = (perfect_wait_s(1 / SERVICE_S, load, 600, seed=1) for load in (0.1, 0.8))

    assert light < SERVICE_S  # only who comes while another is served waits
    assert 9 * SERVICE_S < heavy < 13 * SERVICE_S  # M/D/1: exp(-0.43 w) of requests wait longer


def test_the_memory_of_a_server_is_told_while_one_of_its_processes_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        until(lambda: psutil.Process(ended.pid).status() == psutil.STATUS_ZOMBIE)

        pids = [name.split()[-1] for name in Memory(os.getpid()).by_process()]

    assert str(os.getpid()) in pids
    assert str(ended.pid) not in pids
