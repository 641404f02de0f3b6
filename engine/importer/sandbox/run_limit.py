"""A bound on each single run of an uploaded model while it is imported.

What a loop runs over, or how large a tensor grows, may follow from the content of the inputs; no
look at the file tells. So the kernel counts the CPU time of each run, and ends the process with
SIGPROF when it is used up, wherever the run is: inside a library, too, that never looks up. The
server knows what that signal means (``launch.py``).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

BYTES_A_SECOND = 4 << 20
"""A file this much larger may run a second longer: honest work grows with the weights."""

_seconds: list[float] = []  # of this process; empty: its runs are not bounded


def bound_trials(seconds: float, file_bytes: int) -> None:
    """Let no ``trial`` of this process use more CPU time than this, all threads together."""
    _seconds[:] = [seconds + file_bytes / BYTES_A_SECOND]


@contextmanager
def trial() -> Iterator[None]:
    """Surround one run of an uploaded model, or what a library does to be able to run it."""
    if not _seconds:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, _seconds[0])
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
