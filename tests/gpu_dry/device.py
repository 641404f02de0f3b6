"""What the CUDA runtime in software tells tests (runtime/cudart.cpp, at its end)."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_process = ctypes.CDLL(None)

is_loaded = hasattr(_process, "dry_counts")
"""Whether this process runs on the runtime in software."""

if is_loaded:
    for name in ("dry_counts", "dry_graph", "dry_note"):
        getattr(_process, name).restype = ctypes.c_char_p


def counts() -> dict[str, int]:
    """Bytes and objects that live now, and calls so far."""
    document: dict[str, int] = json.loads(_process.dry_counts())
    return document


def captured() -> int:
    """Operations in this thread's capture so far; -1 outside of captures."""
    return int(_process.dry_captured())


def graph_order() -> list[int]:
    """The graph instantiated last: of each operation, a bit set of all that come before it."""
    before: list[int] = []
    for line in _process.dry_graph().decode().splitlines():
        after = [int(place) for place in line.partition("\t")[2].split()]
        bits = 0
        for place in after:
            bits |= before[place] | 1 << place
        before.append(bits)
    return before


def between_timed_events(work: Callable[[], object]) -> list[str]:
    """Operations on the device between the last two timed events of ``work``."""
    _process.dry_note(1)
    try:
        work()
    finally:
        lines: list[str] = _process.dry_note(0).decode().splitlines()
    end = len(lines) - 1 - lines[::-1].index("event")
    start = end - 1 - lines[:end][::-1].index("event")
    return lines[start + 1 : end]


@contextmanager
def only(free_bytes: int) -> Iterator[None]:
    """Leave this much memory on the device beside what is in use."""
    _process.dry_capacity(ctypes.c_size_t(counts()["used_bytes"] + free_bytes))
    try:
        yield
    finally:
        _process.dry_capacity(ctypes.c_size_t(0))
