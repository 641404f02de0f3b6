"""The front end and the device's threads share no core where there are enough."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from braid.engine.link.options import WorkerOptions
from braid.server.devices.cores import pinned_cores

LEAVE_CORES = """
import os, threading
from braid.server.devices.cores import leave_cores_to_devices
started, ended = threading.Event(), threading.Event()
other = threading.Thread(target=lambda: (started.set(), ended.wait()))
other.start()
started.wait()
leave_cores_to_devices({core})
print(os.sched_getaffinity(0), os.sched_getaffinity(other.native_id))
ended.set()
"""


def options(threads: int, cores: tuple[int, ...], *, pin: bool = True) -> WorkerOptions:
    return WorkerOptions(threads, 1 << 20, 1 << 20, 1, cores=cores, pin_threads=pin)


def test_pinned_cores_are_the_first_ones_of_each_device() -> None:
    assert pinned_cores([options(2, (0, 1, 2)), options(1, (5, 6))]) == {0, 1, 5}


def test_nothing_is_pinned_where_threads_share_cores_or_are_not_to_be() -> None:
    assert pinned_cores([options(3, (0, 1)), options(1, (0, 1), pin=False)]) == set()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_every_thread_leaves_the_cores_unless_no_other_is_there() -> None:
    cores = os.sched_getaffinity(0)
    first = min(cores)

    some = _after(f"{{{first}}}")
    all_of_them = _after(repr(cores))

    assert some == f"{cores - {first}} {cores - {first}}"
    assert all_of_them == f"{cores} {cores}"


def _after(cores: str) -> str:
    command = [sys.executable, "-c", LEAVE_CORES.replace("{core}", cores)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
