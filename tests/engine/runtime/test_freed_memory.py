"""Freed memory stays with a process, and goes back to the system when it is asked to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from braid.engine.runtime.memory import freed_bytes

HOLD_AND_FREE = """
import ctypes
from pathlib import Path
from braid.engine.runtime.memory import freed_bytes, give_back_freed_memory, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
before = resident()
blocks = [libc.malloc(1 << 20) for _ in range(400)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
held = resident()
for block in blocks[:-1]:  # the last one keeps the top of the heap in use
    libc.free(block)
kept, free = resident(), freed_bytes() >> 20
was_much = give_back_freed_memory()
print(before, held, kept, free, was_much, resident())
"""


@pytest.mark.skipif(freed_bytes() == 0, reason="this C library does not tell")
def test_what_a_huge_request_freed_goes_back_to_the_system() -> None:
    command = [sys.executable, "-c", HOLD_AND_FREE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, held, kept, free, was_much, after = done.stdout.split()

    assert int(held) - int(before) >= 390, "MiB"
    assert int(kept) >= int(held) - 10, "it stays with the process"
    assert int(free) >= 390
    assert was_much == "True"
    assert int(after) - int(before) < 40
