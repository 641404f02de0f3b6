"""Limit of the memory that a worker on a CPU may allocate.

RLIMIT_DATA counts what a process allocates: tensors, weights, arenas, stacks. It leaves out what
RLIMIT_AS counts too: files that are mapped (800 MB of libraries), memory that is only
reserved, and the memory shared with the front end. A worker that has loaded torch and ONNX Runtime
counts 260 MB, of which it uses nearly all. On a GPU there is no limit here: CUDA reserves without
end.

An allocation over the limit fails, and with it one request (engine/runtime/out_of_memory.py);
without a limit the kernel would look for a process to kill.
"""

from __future__ import annotations

import resource


def limit_memory(size_bytes: int) -> None:
    """Let this process allocate at most ``size_bytes``, or less where its hard limit is lower."""
    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    if highest != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, highest)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))
