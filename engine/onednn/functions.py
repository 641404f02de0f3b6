"""The functions of oneDNN: those of the package ``onednn-cpu-gomp``.

No newer build is faster in FP32, BF16 or INT8 (docs/decisions/0008-onednn.md), and this one uses
the OpenMP that torch has loaded, so one team serves both.
"""

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

log = logging.getLogger("braid.kernels")

PACKAGE = "onednn-cpu-gomp"
_MAJOR = 3


@dataclass(frozen=True, slots=True)
class Functions:
    """oneDNN's C interface."""

    by_name: Any  # a function dnnl_... is an attribute; a call releases the interpreter lock
    set_handle: Any  # dnnl_memory_set_data_handle, keeping the lock


def functions_of_file(path: str) -> Functions:
    """Functions of a library; ``OSError`` if it does not load, or is of another major version."""
    return checked(ctypes.CDLL(path), ctypes.PyDLL(path).dnnl_memory_set_data_handle)


@cache
def find_functions() -> Functions | None:
    """The functions of the package, if it is installed and loads here."""
    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        return None
    for file in files:
        if file.name == f"libdnnl.so.{_MAJOR}":
            try:
                return functions_of_file(str(Path(str(file.locate())).resolve()))
            except OSError:
                log.warning("%s does not load; torch's kernels run instead", file, exc_info=True)
    return None


def checked(by_name: Any, set_handle: Callable[..., int]) -> Functions:
    """``by_name`` as functions; ``OSError`` for another major version than is called here."""
    by_name.dnnl_version.restype = ctypes.POINTER(ctypes.c_int)
    major = by_name.dnnl_version()[0]
    if major != _MAJOR:
        raise OSError(f"oneDNN {major} instead of {_MAJOR}")
    return Functions(by_name, set_handle)
