"""Waits of threads for a core that another process always wants."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

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


def is_counted(work: Callable[[], None]) -> bool:
    """Whether the waits of a thread that does this are counted."""
    waits, thread_ids = ThreadWaits(), list[int]()

    def run() -> None:
        thread_ids.append(threading.get_native_id())
        work()

    return bool(in_thread(run, lambda: thread_ids[0] in waits.by_thread_ns()))


def test_a_thread_that_nobody_waits_for_is_left_out() -> None:
    assert is_counted(lambda: None)
    assert not is_counted(takes_no_part)


def test_threads_that_come_and_go_leave_no_open_files() -> None:
    for _ in range(50):
        in_thread(lambda: None, lambda: ThreadWaits().longest_ns())
    ThreadWaits().longest_ns()

    ended = open_statistics() - set(os.listdir("/proc/self/task"))
    assert len(ended) < 25, "at most some that another test has just ended"


def open_statistics() -> set[str]:
    """The threads whose statistics this process has open."""
    threads = set[str]()
    for file in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it has been closed
            path = Path(os.readlink(f"/proc/self/fd/{file}"))
            if path.name == "schedstat":
                threads.add(path.parent.name)
    return threads


def test_waking_up_is_no_wait_and_a_long_wait_interrupts() -> None:
    calm = NetTime(100.0, False)

    assert calm.beside(WAKING_NS) == calm
    assert calm.beside(WAKING_NS + 50_000) == NetTime(100.0, True, 0.5)
    assert waited_part(WAKING_NS + 1e6, 1e6) == 1.0
