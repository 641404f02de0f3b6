"""How much memory a worker on a CPU may take, and what its libraries say when it is used up.

RLIMIT_DATA counts what a process makes for itself: tensors, weights, arenas, stacks. It leaves out
what RLIMIT_AS counts too: files that are mapped (800 MB of libraries), memory that is only
reserved, and the memory shared with the front end. A worker that has loaded torch and ONNX Runtime
counts 260 MB, of which it uses nearly all. On a GPU there is no limit here: CUDA reserves without
end.

An allocation over the limit fails, and with it one request; without a limit the kernel would look
for a process to kill.
"""

from __future__ import annotations

import resource

SIGNS = (
    "can't allocate memory",  # torch
    "Failed to allocate memory",  # ONNX Runtime's arena
    "bad allocation",  # ONNX Runtime otherwise
    "bad_alloc",
    "oneDNN answered 1 ",  # dnnl_out_of_memory
    "Cannot allocate memory",
)


def limit_memory(size_bytes: int) -> None:
    """Let this process take so much memory of its own at most."""
    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    if highest != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, highest)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that there was no memory left."""
    while error is not None:
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__
    return False
