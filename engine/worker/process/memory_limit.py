"""Limit of the memory that a worker on a CPU may allocate.

RLIMIT_DATA counts what a process allocates: tensors, weights, arenas, stacks. It leaves out what
RLIMIT_AS counts too: files that are mapped (800 MB of libraries), memory that is only
reserved, and the memory shared with the front end. It counts the data of libraries that is never
written to, 100 MB with a CPU build of torch and 530 with a CUDA build, which is added to the limit.
On a GPU there is no limit here: CUDA reserves without end.

An allocation over the limit fails, and with it one request (engine/runtime/memory.py);
without a limit the kernel would look for a process to kill.
"""

from __future__ import annotations

import resource
from pathlib import Path


def limit_memory(size_bytes: int) -> None:
    """Limit this process's own memory, with what it uses already; a lower hard limit counts."""
    size_bytes += max(0, _status_bytes("VmData") - _status_bytes("RssAnon"))
    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    if highest != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, highest)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
