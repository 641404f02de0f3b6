"""Memory of a process: a lack of it in the errors of libraries, and freed memory that is kept.

    importer process, device worker ──error──> is_out_of_memory ──> the limit to raise
    device worker ──error──> leaves_interpreter_unsound ──> it ends, and another one starts
    verdict on a model ──error──> raise_out_of_memory: it says nothing of the model
    front end ──last output of an importer──> says_out_of_memory ──^

Tensors of the same sizes come and go all the time. glibc gives large blocks back to the kernel as
soon as they are freed, and gets zeroed pages again for the next tensor: for 600 KB that costs more
than all copies together (about 2 ms of system time a request was seen; see
docs/decisions/0005-allocator.md). So freed memory is kept, until the process is idle or a model has
left it. Other C libraries are left alone.

Needs no torch.
"""

import ctypes
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

_SIGNS = (
    "allocate memory",  # torch, ONNX Runtime's arena, the system
    "not enough memory",  # torch
    "bad allocation",  # ONNX Runtime otherwise
    "bad_alloc",
    "oneDNN answered 1 ",  # dnnl_out_of_memory
    "can't start new thread",  # its stack finds no room
)

_WHOLE_ENDS = re.compile(
    r"(could not create a primitive|failed to map segment from shared object)$", re.MULTILINE
)
"""Signs only at the end of a line. torch says the first where oneDNN has a kernel and could not
make it, whatever it answered; that there is no kernel is said of "a primitive descriptor". The
dynamic linker says the second of a library that found no room; it names other reasons behind a
colon."""


def says_out_of_memory(text: str) -> bool:
    return any(sign in text for sign in _SIGNS) or _WHOLE_ENDS.search(text) is not None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that there was no memory left."""
    while error is not None:
        if isinstance(error, MemoryError) or says_out_of_memory(str(error)):
            return True
        error = error.__cause__
    return False


def leaves_interpreter_unsound(error: BaseException | None) -> bool:
    """Whether the interpreter itself met the lack of memory, so that it cannot be relied on.

    Code of others does not always put back what it took where there is no memory for the
    interpreter's own objects: a function that stood in for another one stayed there.
    """
    while error is not None:
        if isinstance(error, SystemError) or (type(error) is MemoryError and not error.args):
            return True
        error = error.__cause__ or error.__context__
    return False


def raise_out_of_memory(error: Exception) -> None:
    """For those who take any other error of a library for a property of the model."""
    if is_out_of_memory(error):
        raise MemoryError(str(error)) from error


def mapped_bytes() -> int:
    """Address space of this process, as RLIMIT_AS counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


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


TRIM_BYTES = 128 << 20  # free memory that is worth the page faults of giving it back
LOADED_TRIM_BYTES = 4 << 20  # the same after a model was loaded, whose next run is not that one
IDLE_SECONDS = 10.0  # without work, after which a process gives back what it freed


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of <malloc.h>."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def freed_bytes() -> int:
    """Bytes of glibc's heaps that are free; 0 before glibc 2.33, and elsewhere."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo.restype = _Mallinfo
    return int(mallinfo().fordblks)


def give_back_freed_memory(least_bytes: int = TRIM_BYTES) -> bool:
    """Return free memory if it is so much; returns whether it was. Next uses cost page faults."""
    if freed_bytes() < least_bytes:
        return False
    return bool(ctypes.CDLL(None).malloc_trim(min(least_bytes, TOP_PAD_BYTES)))


class FreedMemory:
    """When a process gives back what it has freed: once it had no work for a while."""

    def __init__(
        self,
        idle_s: float = IDLE_SECONDS,
        give_back: Callable[[int], object] = give_back_freed_memory,
        give_back_read: Callable[[], object] = lambda: None,
    ) -> None:
        """Note no work yet; ``give_back_read`` is called, too, where a model was loaded."""
        self._idle_s = idle_s
        self._give_back = give_back
        self._give_back_read = give_back_read
        self._due: float | None = None  # None: no work came since it was given back
        self._least_bytes = TRIM_BYTES

    def worked(self) -> None:
        self._due = monotonic() + self._idle_s

    def loaded(self) -> None:
        """Note work that leaves more behind than the next work needs."""
        self.worked()
        self._least_bytes = LOADED_TRIM_BYTES

    @property
    def due_s(self) -> float | None:
        """Seconds until memory is given back, unless work comes; None: there is none."""
        return None if self._due is None else max(0.0, self._due - monotonic())

    def give_back(self) -> None:
        if self._least_bytes == LOADED_TRIM_BYTES:
            self._give_back_read()
        self._give_back(self._least_bytes)
        self._due, self._least_bytes = None, TRIM_BYTES
