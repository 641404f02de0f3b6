"""Cores that the front end leaves to devices, if it has others.

A device thread that is pinned to a core cannot move. Other work on that core makes a batch wait,
and under a flood of requests that is most of what the front end and gRPC's threads do: seen with
SqueezeNet on one of two cores at 600 requests a second, the device gave 92 % of its capacity with
the front end free to run anywhere, and all of it with the front end on the other core.
"""

import contextlib
import os
from collections.abc import Iterable

from braid.engine.link.options import WorkerOptions


def pinned_cores(workers: Iterable[WorkerOptions]) -> set[int]:
    """Numbers of the cores that threads of these workers are pinned to.

    A worker of a GPU pins none, nor does one with more threads than cores.
    """
    return {
        core
        for options in workers
        if options.gpu is None and options.pin_threads and options.threads <= len(options.cores)
        for core in options.cores[: options.threads]
    }


def leave_cores_to_devices(cores: set[int]) -> None:
    """Let no thread of this process run on ``cores``; does nothing if that leaves no core.

    Processes started from now on inherit this. Workers of CPU devices choose their own cores.
    """
    others = os.sched_getaffinity(0) - cores
    if not others:
        return
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, others)
