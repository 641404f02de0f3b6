"""Check that this process can use a GPU; the error says in one line why it cannot."""

from __future__ import annotations

import torch

from braid.core.errors import StartupError


def require_gpu() -> None:
    """Start CUDA on the only GPU that this process sees.

    Raises:
        StartupError: there is no GPU, no driver or one that is too old, or a torch without CUDA.
    """
    if torch.version.cuda is None:
        raise StartupError(
            f"PyTorch {torch.__version__} is built without CUDA; install a build for CUDA, or "
            "leave this device out"
        )
    try:
        torch.cuda.init()
        torch.empty(1, device="cuda")  # makes the context, which can fail, too
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        raise StartupError(f"the GPU cannot be used: {_first_sentence(error)}") from error


def _first_sentence(error: BaseException) -> str:
    """First sentence of an error: torch's messages then say what to download."""
    line = " ".join(str(error).split("\n")[0].split())
    return line.partition(". ")[0].rstrip(".")[:300] or type(error).__name__
