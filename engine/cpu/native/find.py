"""The part in C, loaded."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

log = logging.getLogger("braid.executor")

FUNCTIONS = (
    *("braid_run_lanes", "braid_let_lanes_spin", "braid_interleave"),
    *("braid_winograd", "braid_has_winograd"),
)

_POINTER = ctypes.c_void_p


@cache
def find_native() -> ctypes.CDLL | None:
    """Functions of lanes.c and winograd.c; None where they were not built."""
    for path in sorted(Path(__file__).parent.glob("_lanes*.so")):
        try:
            native = ctypes.CDLL(str(path))
            for name in FUNCTIONS:
                getattr(native, name)
            native.braid_winograd.argtypes = [_POINTER, _POINTER, ctypes.c_int, _POINTER]
        except (OSError, AttributeError):  # built for another machine, or from older sources
            message = "%s cannot be used; `make setup` builds it again; plans run from Python"
            log.warning(message, path.name, exc_info=True)
        else:
            return native
    return None
