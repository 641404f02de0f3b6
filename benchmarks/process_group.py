"""Ends a process together with what it started, such as a compiler's workers.

A process that is started with ``process_group=0`` leads a group, and its children belong to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


def end_group(leader: subprocess.Popen[str]) -> int:
    """Kill a group and return its leader's exit status, which is its own if it has ended before."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    return leader.wait()
