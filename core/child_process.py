"""The environment of a child process of the server, and its end with its parent.

    server ──child_environment──> device workers, benches, planners ──end_with_parent──> gone

A child runs uploaded models, in libraries that have bugs. The server's environment may hold tokens
and credentials, so a child gets the variables that are listed here and no others.
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
"""Names of variables that locate programs, libraries, compilers and caches."""

KEPT_PREFIXES = (
    *("LC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "ONEDNN_", "DNNL_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "ORT_", "TRITON_", "CUDA_", "CUDNN_", "CUBLAS_"),
    *("NVIDIA_", "NCCL_", "ASAN_", "TSAN_", "UBSAN_", "COVERAGE_"),
)
"""First parts of names of variables that set the libraries of children."""

SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "PRIVATE")
"""Parts of names of variables that are never passed on."""


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Part of ``environment`` that a child needs to find and to set its libraries."""
    return {name: value for name, value in environment.items() if _is_harmless(name)}


def _is_harmless(name: str) -> bool:
    if any(word in name.upper() for word in SECRETS):
        return False
    return name in KEPT or name.startswith(KEPT_PREFIXES)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, the process that started it, ends.

    That ends a search, a kernel or a debugger, too. For Linux the parent is the thread that started
    this process: in the server the main thread, which lives as long as the server.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
