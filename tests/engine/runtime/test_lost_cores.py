"""Waits of threads for a core that another process always wants."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from braid.engine.runtime.lost_cores import LostCores, ThreadWaits, takes_no_part
from braid.engine.runtime.yielding import WAKING_NS, NetTime, waited_part


@pytest.fixture
def taken_core() -> Iterator[int]:
    """A core that another process always wants."""
    core = min(os.sched_getaffinity(0))
    burn = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield core
        other.kill()


def in_thread(work: Callable[[], None], look: Callable[[], int]) -> int:
    """What ``look`` sees while a thread that has done its work is still there."""
    done, seen = threading.Event(), threading.Event()

    def run() -> None:
        work()
        done.set()
        seen.wait(120)

    thread = threading.Thread(target=run)
    thread.start()
    assert done.wait(120)
    found = look()
    seen.set()
    thread.join()
    return found


def test_a_thread_that_wakes_up_on_a_taken_core_has_waited(taken_core: int) -> None:
    def work() -> None:
        os.sched_setaffinity(0, [taken_core])
        for _ in range(100):
            time.sleep(0.001)
            until = time.thread_time() + 0.0005
            while time.thread_time() < until:
                pass

    waits, lost = ThreadWaits(), LostCores(how_long=True)

    assert in_thread(work, lambda: min(waits.longest_ns(), lost.waited_ns()[1])) > 1_000_000


def test_a_thread_that_nobody_waits_for_is_left_out() -> None:
    waits = ThreadWaits()
    among = in_thread(lambda: None, lambda: len(waits.by_thread_ns()))
    left_out = in_thread(takes_no_part, lambda: len(waits.by_thread_ns()))

    assert left_out == among - 1


def test_threads_that_come_and_go_leave_no_open_files() -> None:
    ThreadWaits().longest_ns()
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(50):
        in_thread(lambda: None, lambda: ThreadWaits().longest_ns())
    ThreadWaits().longest_ns()

    assert len(os.listdir("/proc/self/fd")) == before


def test_waking_up_is_no_wait_and_a_long_wait_interrupts() -> None:
    calm = NetTime(100.0, False)

    assert calm.beside(WAKING_NS) == calm
    assert calm.beside(WAKING_NS + 50_000) == NetTime(100.0, True, 0.5)
    assert waited_part(WAKING_NS + 1e6, 1e6) == 1.0
