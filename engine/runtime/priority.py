"""Work that gives way to inference: fewer turns on the cores, and none while a request is served.

On Linux with autogroups (``sched_autogroup_enabled``) niceness counts inside one session only, and
sessions of their own, as importers and planners are, share the cores evenly. So the niceness of the
session is set too. A thread that wakes up waits for the end of the present one's turn, niceness or
not, unless that one has asked for a longer turn than its own (Linux 6.12). So they ask for turns
that are a little longer. Turns of 100 ms take a thread of low priority seconds of virtual time
ahead; the kernel places waking threads at the average, and so behind busy programs of other users:
inference then waited for up to 2 s. When memory runs out, such a process is the first to go. Needs
no torch.
"""

import ctypes
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

NICENESS = 5  # a quarter of the time where inference wants all of it
OOM_SCORE = 500  # of 1000: as if it took half of the memory more than it does
WORKER_OOM_SCORE = 200
TURN_NS = 3_200_000  # usual are 1.4 to 3 ms
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # number of the system call


def process_gives_way() -> None:
    """Lower the priority of this process, which leads a session of its own, for good."""
    os.nice(NICENESS)
    with suppress(OSError):  # there are no autogroups here
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    asks_for_longer_turns()
    _raise_oom_score(OOM_SCORE)


def ends_before_the_server() -> None:
    """Let the kernel kill this process before the front end when memory runs out."""
    _raise_oom_score(WORKER_OOM_SCORE)


def asks_for_longer_turns() -> bool:
    """For this thread and those it starts; False where the kernel does not know of it."""
    call = _SCHED_SETATTR.get(platform.machine())
    if call is None:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    # size, SCHED_OTHER, flags, niceness, real-time priority, turn, two of real-time threads
    attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, niceness, 0, TURN_NS, 0, 0)
    return bool(ctypes.CDLL(None, use_errno=True).syscall(call, 0, attributes, 0) == 0)


def _raise_oom_score(score: int) -> None:
    file = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        if int(file.read_text()) < score:
            file.write_text(str(score))


def thread_gives_way() -> None:
    """Lower the priority of this thread and of threads that it starts, for good."""
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # Linux: of the calling thread
