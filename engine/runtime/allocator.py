"""Keep freed memory in the process: tensors of the same sizes come and go all the time.

glibc gives large blocks back to the kernel as soon as they are freed, and gets zeroed pages again
for the next tensor: for 600 KB that costs more than all copies together (about 2 ms of system
time a request was seen; see docs/decisions/0005-allocator.md). Other C libraries are left alone.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1  # <malloc.h>
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

KEEP_BYTES = 256 << 20  # free memory at the top of the heap that is kept
LARGEST_HEAP_BLOCK_BYTES = 32 << 20  # larger ones are mapped, and unmapped when freed
TOP_PAD_BYTES = 16 << 20  # how much more is fetched than asked for


def keep_freed_memory() -> bool:
    """Set glibc's limits for giving memory back; returns whether glibc accepted them."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = (
        (_M_TRIM_THRESHOLD, KEEP_BYTES),
        (_M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK_BYTES),
        (_M_TOP_PAD, TOP_PAD_BYTES),
    )
    return all(bool(mallopt(option, value)) for option, value in settings)
