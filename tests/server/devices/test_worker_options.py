"""Threads and cores of workers, under a quota and without."""

import math
import os
import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from braid.core.allowance import CpuAllowance
from braid.engine.link.options import WorkerOptions
from braid.server.device_names import parse_device
from braid.server.devices.cores import pinned_cores
from braid.server.devices.quota_cores import (
    CpuLayout,
    choice_cost,
    choose_cores,
    cores_paid_for,
    cpu_layout,
)
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


def layout_of(cores: int, *, threads: int = 1, caches: int = 1) -> CpuLayout:
    """Cores 0, 1, ... of ``threads`` hyperthreads a core, ``caches`` caches of equally many."""
    each = cores // caches
    return CpuLayout(
        {
            n: frozenset(range(n - n % threads, n - n % threads + threads)) - {n}
            for n in range(cores)
        },
        {n: frozenset(range(n - n % each, n - n % each + each)) - {n} for n in range(cores)},
    )


@pytest.mark.parametrize("seed", range(30))
def test_no_other_cores_of_one_cache_are_used_less_by_others(seed: int) -> None:
    chance = random.Random(seed)
    busy = {core: chance.randint(0, 10) / 10 for core in range(8)}
    count, layout = chance.randint(1, 8), layout_of(8)

    chosen = choose_cores(busy, count, layout, chance)

    best = min(choice_cost(cores, busy, layout) for cores in combinations(range(8), count))
    assert len(set(chosen)) == count
    assert choice_cost(chosen, busy, layout) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(10))
def test_hyperthreads_of_one_core_are_not_taken_both_while_other_cores_are_idle(seed: int) -> None:
    idle, layout = dict.fromkeys(range(8), 0.0), layout_of(8, threads=2)

    chosen = choose_cores(idle, 4, layout, random.Random(seed))

    assert sorted(core // 2 for core in chosen) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_cores_of_one_cache_are_preferred(seed: int) -> None:
    idle, layout = dict.fromkeys(range(32), 0.0), layout_of(32, caches=4)

    chosen = choose_cores(idle, 8, layout, random.Random(seed))

    assert len({core // 8 for core in chosen}) == 1


def test_a_cache_whose_cores_are_idle_is_preferred_to_one_with_the_idlest_core() -> None:
    busy = {0: 0.0, 1: 0.9, 2: 0.1, 3: 0.1}

    assert set(choose_cores(busy, 2, layout_of(4, caches=2), random.Random(0))) == {2, 3}


def test_servers_that_see_all_cores_idle_take_different_ones() -> None:
    idle, layout = dict.fromkeys(CORES, 0.0), layout_of(64)

    assert len({choose_cores(idle, 1, layout, random.Random(seed)) for seed in range(50)}) > 20


def test_the_layout_is_what_the_system_says(tmp_path: Path) -> None:
    for core, (threads, cache) in enumerate([("0,2", "0-2"), ("1,3", "1,3"), ("0,2", "0-2")]):
        for name, text in {
            "topology/thread_siblings": threads,
            "cache/index3/shared_cpu": cache,
        }.items():
            file = tmp_path / f"cpu{core}/{name}_list"
            file.parent.mkdir(parents=True)
            file.write_text(f"{text}\n")

    told, silent = cpu_layout((0, 1, 2), tmp_path), cpu_layout((0, 1, 2), tmp_path / "none")

    assert told.siblings == told.near == {0: {2}, 1: set(), 2: {0}}
    assert silent.siblings == {0: set(), 1: set(), 2: set()}
    assert silent.near == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}


@pytest.mark.parametrize(
    ("settings", "quota", "count"),
    [
        (Settings(), 2.0, 2),
        (Settings(), 1.5, 2),
        (Settings(), 0.5, 1),
        (Settings(threads=4), 2.0, 4),
        (Settings(threads=1), 2.0, 2),
        (Settings(devices=("cuda:0",)), 4.0, 4),
        (Settings(), 63.5, 0),
        (Settings(), math.inf, 0),
        (Settings(pin_threads=False), 2.0, 0),
        (Settings(devices=("cpu:0-7", "cpu:8-15")), 2.0, 0),
    ],
)
def test_as_many_cores_are_kept_as_the_quota_begins_to_pay_for(
    settings: Settings, quota: float, count: int
) -> None:
    assert cores_paid_for(settings, CpuAllowance(CORES, quota)) == count


MOVES = """
import os, subprocess, sys, threading
from pathlib import Path
from braid.server.devices import quota_cores
from braid.server.devices.quota_cores import QuotaCores

def used(**ticks):  # by core, of 100 that pass
    for core, count in ticks.items():
        total[core] = (total[core][0] + count, total[core][1] + 100 - count)
    lines = [f"{core} {busy} 0 0 {idle} 0 0 0 0 0 0" for core, (busy, idle) in total.items()]
    statistics.write_text("\\n".join(lines))

def masks(pid):
    return {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir(f"/proc/{pid}/task")}

cores = sorted(os.sched_getaffinity(0))[:2]
first, second = (f"cpu{core}" for core in cores)
total = {first: (0, 0), second: (0, 0)}
quota_cores.STATISTICS = statistics = Path(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
ended = threading.Event()
threading.Thread(target=ended.wait).start()
used(**{first: 0, second: 0})
kept = QuotaCores(cores, 1)

used(**{first: 90, second: 0})
kept.look()
print(*masks(os.getpid()) | masks(child.pid))

begin = os.times()
while sum(os.times()[:2]) - sum(begin[:2]) < 0.9:
    pass
used(**{first: 0, second: 90})  # by this process
kept.look()
print(*masks(os.getpid()) | masks(child.pid))

used(**{first: 0, second: 90})  # by others
kept.look()
print(*masks(os.getpid()) | masks(child.pid))

used(**{first: 15, second: 0})  # too little to move for
kept.look()
print(*masks(os.getpid()) | masks(child.pid))
ended.set()
child.communicate(b"\\n")
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_and_children_move_when_others_use_their_core_and_not_for_own_work(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", MOVES, str(tmp_path / "stat")]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    first, second = (f"frozenset({{{core}}})" for core in sorted(os.sched_getaffinity(0))[:2])
    assert done.stdout.splitlines() == [second, second, first, first]
