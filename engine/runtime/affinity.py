"""Pinning of a device's threads to cores.

Left to the kernel, two threads of one OpenMP team can end up on one core while another process
uses the other: then each waits out its whole spin while the other one cannot run, and a 3 ms
model takes 30 to 400 ms (docs/decisions/0007-pinned-threads.md). So every thread is pinned.

OpenMP threads cannot be asked to pin themselves from Python: a team is made by running an
operator large enough for all its threads, and the threads that appeared are pinned from outside.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import torch

_SPREAD_ELEMENTS = 1 << 22  # an elementwise operator of this size uses every thread


def usable_cpus() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def make_pinned_team(cpus: Sequence[int]) -> None:
    """Give the calling thread an OpenMP team of ``len(cpus)`` threads, one on each core.

    The calling thread itself stays on ``cpus[0]``. Must be the first operator that this thread
    runs with more than one thread. A kernel that refuses to pin leaves threads where they are.
    """
    before = set(os.listdir("/proc/self/task"))
    torch.set_num_threads(len(cpus))
    torch.ones(_SPREAD_ELEMENTS).add_(1)
    made = sorted(map(int, set(os.listdir("/proc/self/task")) - before))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {cpus[0]})
        for thread, cpu in zip(made, cpus[1:], strict=False):
            os.sched_setaffinity(thread, {cpu})
