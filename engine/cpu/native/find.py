"""The part in C, loaded."""

import ctypes
import logging
from functools import cache
from hashlib import sha256
from pathlib import Path

log = logging.getLogger("braid.executor")

CALLED = (
    *("braid_winograd", "braid_attention", "braid_rows", "braid_groups", "braid_rotate"),
    *("braid_reduce", "braid_elements", "braid_gather", "braid_extremes", "braid_running"),
    "braid_recurrent",
)
"""Functions that are called as a primitive is (call.h)."""

FUNCTIONS = (
    *("braid_run_lanes", "braid_let_lanes_spin", "braid_interleave", "braid_core_distances"),
    *("braid_has_winograd", "braid_attention_scratch", "braid_limit_vectors", *CALLED),
)

MISSING = (
    "the part in C was not built, so there are no Winograd convolutions and plans run from Python, "
    "which is slower; install a C compiler (apt-get install gcc libc6-dev), then Braid again: "
    "`make setup` in a checkout, else pip install --force-reinstall --no-deps --no-cache-dir "
    "braid-serve"
)

_POINTER = ctypes.c_void_p


@cache
def find_native() -> ctypes.CDLL | None:
    """Functions of the sources beside this; None, with a warning, where they were not built."""
    paths = sorted(Path(__file__).parent.glob("_lanes*.so"))
    for path in paths:
        try:
            native = ctypes.CDLL(str(path))
            _check_sources(native, path.parent)
            for name in FUNCTIONS:
                getattr(native, name)
            for name in CALLED:
                function = getattr(native, name)
                function.argtypes = [_POINTER, _POINTER, ctypes.c_int, _POINTER]
            native.braid_attention_scratch.argtypes = [_POINTER]
            native.braid_attention_scratch.restype = ctypes.c_int64
            native.braid_core_distances.argtypes = [
                *(_POINTER, ctypes.c_int, ctypes.c_int, ctypes.c_int),
                *(ctypes.c_int64, _POINTER),
            ]
        except (OSError, AttributeError):  # built for another machine, or from other sources
            message = "%s cannot be used; `make setup` builds it again; plans run from Python"
            log.warning(message, path.name, exc_info=True)
        else:
            return native
    if not paths:
        log.warning(MISSING)
    return None


def _check_sources(native: ctypes.CDLL, folder: Path) -> None:
    """Raise ``OSError`` if sources in ``folder`` are not of ``native``: structures may differ."""
    native.braid_sources.restype = ctypes.c_char_p
    names = sorted(path.name for path in (*folder.glob("*.c"), *folder.glob("*.h")))
    content = b"".join((folder / name).read_bytes() for name in names)
    if names and sha256(content).hexdigest() != native.braid_sources().decode():
        raise OSError("it was built from other sources than those beside it")
