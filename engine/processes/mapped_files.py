"""Pages of mapped files that a process has read and may not need again.

Weights are mapped from their file, and most kernels read them once, to pack them as they want them.
So are libraries, most of whose code runs when they load. The pages read stay with the process for
as long as the system has memory, and count as its own. Given back, they stay in the system's cache;
the few that are read at each run come again.
"""

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

MAPPINGS = Path("/proc/self/smaps")

_MADV_DONTNEED = 4  # <sys/mman.h>
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S(\S)\S+ \S+ \S+ (\d+) *(.*)$")
_FACT = re.compile(r"^(Rss|Anonymous|Swap): +(\d+) kB$")


def give_back_pages(name: str = "") -> int:
    """Give back pages of mapped files; returns how many bytes of them were in memory.

    Those of files of this name, and of all that no thread can write to, if never written to.
    """
    advise = ctypes.CDLL(None).madvise
    given = 0
    for start, end, resident in _unwritten(name):
        if advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED) == 0:
            given += resident
    return given


def _unwritten(name: str) -> Iterator[tuple[int, int, int]]:
    """Start, end and resident bytes of each mapping that is as its file, and stays so."""
    try:
        lines = MAPPINGS.read_text(errors="replace").splitlines()
    except OSError:
        return
    span: tuple[int, int] | None = None
    resident = 0
    is_written = False  # in memory, or in swap
    for line in lines:
        if mapping := _MAPPING.match(line):
            start, end, write, node, path = mapping.groups()
            is_file = node != "0" and not path.startswith("/dev/")
            is_meant = is_file and (write == "-" or Path(path).name == name)
            span = (int(start, 16), int(end, 16)) if is_meant else None
        elif span is not None and (fact := _FACT.match(line)):
            if fact[1] == "Rss":
                resident = int(fact[2]) << 10
            elif fact[1] == "Anonymous":
                is_written = fact[2] != "0"
            elif resident and not is_written and fact[2] == "0":
                yield *span, resident
