"""Child processes of the server: command line, environment, and end with their parent.

A child runs uploaded models, in libraries that have bugs. The server's environment may hold tokens
and credentials, so a child gets the variables that are listed here and no others. A child that runs
Python finds Braid among the installed packages, as its parent did, and imports nothing from the
working folder, which may hold a ``core/`` or a ``numpy.py`` of the user's own.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

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

    The process ends even in a search, in a kernel or under a debugger. For Linux the parent is
    the thread that started this process: in the server the main thread, which lives as long.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def outlive_thread_of_parent() -> None:
    """Undo ``end_with_parent``: for a process that notices the end of its parent by itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def python_program() -> Path:
    """Path of the Python that this process runs; scripts of its packages lie beside it."""
    return Path(sys.executable)


def python_command(module: str, *arguments: str) -> list[str]:
    """Command that runs ``python -m module`` without the working folder among its paths."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environment`` for a child, and for the Python processes that its libraries start.

    ``PYTHONPATH`` is kept, without its empty entries, which mean the working folder; its relative
    entries are made absolute, as a child may have another working folder.
    """
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
