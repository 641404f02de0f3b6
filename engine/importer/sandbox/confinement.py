"""Limits that the importer process sets for itself before it reads the upload.

The limits are inherited by whatever the process might start and cannot be raised again. They are
set by the process itself, before torch or onnx are loaded: a ``preexec_fn`` in a server with
threads may deadlock.
"""

from __future__ import annotations

import os
import resource
import signal
from math import ceil

from braid.core.child_process import end_with_parent
from braid.engine.importer.host.limits import ImportLimits
from braid.engine.importer.sandbox.seccomp import forbid_calls
from braid.engine.runtime.priority import process_gives_way

_ALARM_GRACE_S = 10.0  # the server's own wall clock acts first and says so


def confine(limits: ImportLimits, parent: int) -> None:
    """Apply ``limits`` to this process and make it die with its parent, the process ``parent``.

    Network and other programs: calls fail with EPERM.
    CPU time: SIGXCPU at the limit (the default action ends the process), SIGKILL 5 s later.
    Memory: allocations fail. File size: writes fail with EFBIG (Python ignores SIGXFSZ).
    """
    for what, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (resource.RLIMIT_CPU, ceil(limits.cpu_seconds), ceil(limits.cpu_seconds) + 5),
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
    ):
        _, highest = resource.getrlimit(what)
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(what, (soft, hard))
    process_gives_way()
    os.umask(0o077)
    end_with_parent(parent)
    forbid_calls()
    signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds + _ALARM_GRACE_S)
