"""How workers are started on a part of a machine."""

from __future__ import annotations

import math

import pytest

from braid.core.allowance import CpuAllowance
from braid.server.device_names import parse_device
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
