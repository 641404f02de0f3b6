"""Processes that give way, as the kernel sees them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from braid.engine.runtime.priority import NICENESS, TURN_NS

GIVES_WAY = """
import os, threading
from pathlib import Path
from braid.engine.runtime.priority import process_gives_way

process_gives_way()

def show():
    print(Path("/proc/thread-self/sched").read_text(), os.getpriority(os.PRIO_PROCESS, 0))

thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


def turn_ns(sched: str) -> int | None:
    """Length of the turns that a thread asks for, by its file ``sched``; None: unknown."""
    found = re.search(r"^se\.slice\s*:\s*(\d+)$", sched, re.MULTILINE)
    return int(found[1]) if found else None


def test_threads_of_a_process_that_gives_way_are_nice_and_ask_for_long_turns() -> None:
    command = [sys.executable, "-c", GIVES_WAY]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert int(shown.split()[-1]) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    if turn_ns(Path("/proc/self/sched").read_text()) is None:
        pytest.skip("this kernel does not show the length of turns")
    assert turn_ns(shown) == TURN_NS
