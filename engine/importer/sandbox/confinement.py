"""Limits that the importer process sets for itself before it reads the upload.

The limits are inherited by whatever the process might start and cannot be raised again. They are
set by the process itself: a ``preexec_fn`` in a server with threads may deadlock.
"""

from __future__ import annotations

import os
import resource
import signal
from math import ceil
from time import process_time

from braid.core.child_process import end_with_parent
from braid.engine.importer.host.limits import ImportLimits
from braid.engine.importer.sandbox.seccomp import forbid_calls
from braid.engine.runtime.priority import process_gives_way

_ALARM_GRACE_S = 10.0  # the server's own wall clock acts first and says so


def confine(limits: ImportLimits, parent: int) -> None:
    """Give up rights and set limits."""
    give_up_rights(parent)
    set_limits(limits)


def give_up_rights(parent: int) -> None:
    """Forbid network and other programs, which fail with EPERM; end with the process ``parent``."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    process_gives_way()
    os.umask(0o077)
    end_with_parent(parent)
    forbid_calls()


def set_limits(limits: ImportLimits) -> None:
    """Apply ``limits`` to this process, from now on.

    CPU time: SIGXCPU at the limit (the default action ends the process), SIGKILL 5 s later.
    Memory: allocations fail. File size: writes fail with EFBIG (Python ignores SIGXFSZ).
    """
    cpu_seconds = ceil(limits.cpu_seconds + process_time())
    for what, soft, hard in (
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 5),
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
    ):
        _, highest = resource.getrlimit(what)
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(what, (soft, hard))
    signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds + _ALARM_GRACE_S)
