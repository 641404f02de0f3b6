"""What a child process of the server does first: it ends when its parent does.

Whatever it is in then: a search, a kernel without end, a debugger. A process that closes its pipes
or reads the end of them may be too busy to notice; the kernel is not.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, the process that started it, ends.

    Linux means the thread that started it: in the server that is the main thread, which lives as
    long as the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
