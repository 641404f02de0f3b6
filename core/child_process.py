"""What a child process of the server may know, and how it ends: with its parent.

    server ──child_environment──> device workers, benches, planners ──end_with_parent──> gone

A child runs models that strangers uploaded, in libraries that have bugs. What the server was told
in its environment (tokens, credentials of a cloud) is none of its business, so it gets what is
listed here and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1

KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"),
    *("LANG", "LANGUAGE", "TZ", "TERM", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED"),
    *("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
    *("PYTHONFAULTHANDLER", "PYTHONMALLOC", "PYTHONSAFEPATH", "VIRTUAL_ENV", "GLIBC_TUNABLES"),
    *("XDG_CACHE_HOME", "CC", "CXX", "CPATH", "LIBRARY_PATH"),
)
"""Where programs, libraries, compilers and caches are."""

KEPT_PREFIXES = (
    *("LC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "ONEDNN_", "DNNL_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "ORT_", "TRITON_", "CUDA_", "CUDNN_", "CUBLAS_"),
    *("NVIDIA_", "NCCL_", "ASAN_", "TSAN_", "UBSAN_", "COVERAGE_"),
)
"""Settings of the libraries that children load."""

SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "PRIVATE")
"""Never passed on, whatever else is in the name."""


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of ``environment``, what a child needs to find and to set its libraries."""
    return {name: value for name, value in environment.items() if _is_harmless(name)}


def _is_harmless(name: str) -> bool:
    if any(word in name.upper() for word in SECRETS):
        return False
    return name in KEPT or name.startswith(KEPT_PREFIXES)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, the process that started it, ends.

    Whatever it is in then: a search, a kernel without end, a debugger. Linux means the thread that
    started it: in the server that is the main thread, which lives as long as the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
