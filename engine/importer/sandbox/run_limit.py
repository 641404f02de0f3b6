"""A bound on each single run of an uploaded model while it is imported.

How often a loop runs and how large a tensor grows may depend on the content of the inputs. So the
kernel counts the CPU time of each run and ends the process with SIGPROF when it is used up, also
inside of a library. The server knows that signal (``launch.py``).
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

BYTES_A_SECOND = 4 << 20  # so much more of a file adds a second: honest work grows with weights

_seconds: list[float] = []  # of this process; empty: its runs are not bounded


def bound_trials(seconds: float, file_bytes: int) -> None:
    """Bound each ``trial`` of this process to CPU seconds, of all threads together."""
    _seconds[:] = [seconds + file_bytes / BYTES_A_SECOND]


@contextmanager
def trial() -> Iterator[None]:
    """Bound the CPU time of one run of an uploaded model, or of loading it, in a ``with``."""
    if not _seconds:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, _seconds[0])
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
