"""Limits that the importer process sets for itself before it reads the upload.

    rights       network, programs, processes, other files: refused (seccomp.py, landlock.py)
    limits       memory, CPU time, sizes of files, the wall clock

They hold for all threads of the process and cannot be raised again. They are set by the process
itself.
"""

import ctypes
import os
import resource
import signal
import struct
from math import ceil
from pathlib import Path
from time import process_time

from braid.engine.importer.host.request import ImportLimits
from braid.engine.importer.sandbox.landlock import keep_to
from braid.engine.importer.sandbox.seccomp import forbid_calls
from braid.engine.runtime.memory import mapped_bytes
from braid.engine.runtime.priority import process_gives_way

_ALARM_GRACE_S = 10.0  # the server's own wall clock acts first and says so
_CAPSET = {"x86_64": 126, "aarch64": 91}  # number of the system call
_CAPABILITIES_3, _KEPT = 0x20080522, 1 << 1  # CAP_DAC_OVERRIDE: files of other users, in a volume


def confine(limits: ImportLimits, work: Path) -> None:
    give_up_rights()
    keep_to(work)
    set_limits(limits)


def give_up_rights() -> None:
    """Forbid network and programs (EPERM); root keeps access to files, for ``keep_to``."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    process_gives_way()
    os.umask(0o077)
    _drop_capabilities()
    forbid_calls()


def _drop_capabilities() -> None:
    """Give up what root has beyond its files: limits, signals, memory and settings of others."""
    call = _CAPSET.get(os.uname().machine)
    if call is not None and os.geteuid() == 0:
        header = struct.pack("Ii", _CAPABILITIES_3, 0)
        kept = struct.pack("6I", _KEPT, _KEPT, 0, 0, 0, 0)  # effective, permitted, inheritable
        ctypes.CDLL(None, use_errno=True).syscall(call, header, kept)


def set_limits(limits: ImportLimits) -> None:
    """Apply ``limits`` to this process, from now on.

    CPU time: SIGXCPU at the limit (the default action ends the process), SIGKILL 5 s later.
    Memory: allocations beyond what is mapped already fail. Address space is counted because
    RLIMIT_DATA leaves out memory that is shared or grows as a stack, which hostile code could take.
    File size: writes fail with EFBIG (Python ignores SIGXFSZ).
    """
    cpu_seconds = ceil(limits.cpu_seconds + process_time())
    address_space = mapped_bytes() + limits.memory_bytes
    for what, soft, hard in (
        (resource.RLIMIT_AS, address_space, address_space),
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 5),
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
    ):
        _, highest = resource.getrlimit(what)
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(what, (soft, hard))
    signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds + _ALARM_GRACE_S)
