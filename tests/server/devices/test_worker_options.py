import math
import os
import subprocess
import sys

import pytest

from braid.core.allowance import CpuAllowance
from braid.engine.link.options import WorkerOptions
from braid.server.device_names import parse_device
from braid.server.devices.cores import pinned_cores
from braid.server.devices.worker_options import worker_options
from braid.server.settings import Settings

CORES = tuple(range(64))
FREE, FOUR = CpuAllowance(CORES, math.inf), CpuAllowance(CORES, 4.5)


def test_without_a_quota_each_core_has_a_thread_that_may_spin() -> None:
    options = worker_options(Settings(), parse_device("cpu"), FREE)

    assert (options.threads, options.pin_threads, options.cpu_quota) == (64, True, 0.0)


def test_under_a_quota_few_threads_sleep_on_the_cores_of_the_server() -> None:
    options = worker_options(Settings(), parse_device("cpu"), FOUR)

    assert (options.threads, options.pin_threads, options.cpu_quota) == (4, False, 4.5)
    assert options.cores == ()


def test_devices_of_a_cpu_divide_the_quota_by_their_cores() -> None:
    settings = Settings(devices=("cpu:0-29", "cpu:30-39"))

    large, small = (worker_options(settings, parse_device(name), FOUR) for name in settings.devices)

    assert (large.threads, small.threads) == (3, 1)
    assert large.cpu_quota + small.cpu_quota == pytest.approx(4.5)


def test_threads_that_are_set_are_kept_under_a_quota() -> None:
    options = worker_options(Settings(threads=8), parse_device("cpu"), FOUR)

    assert (options.threads, options.pin_threads) == (8, False)


def test_a_gpu_s_references_keep_to_the_quota() -> None:
    settings, two = Settings(devices=("cuda:0",)), CpuAllowance(CORES, 2.0)

    options = worker_options(settings, parse_device("cuda:0"), two)

    assert options.threads == 2


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
