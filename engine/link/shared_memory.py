"""The shared memory of two processes, and who owns which part of it.

An anonymous file (memfd): a child process inherits the descriptor, no name can leak or be guessed,
and the kernel frees it when both processes are gone, however they die. Pages are committed when
first touched. Only one of the two allocates; the other one reads and writes where it is told.

    slot of a batch = input 0 | input 1 | ... | output 0 | output 1 | ...      aligned to 64 bytes
                      and, for strings and outputs whose shape follows the content, | heap

A string's element is where its text lies in the heap: two 32-bit numbers, offset and size; zeros
are the empty string. The heap begins with its size and what of it is used, 64 bits each. There each
text follows its length, so that texts of rows lie as messages want them (braid.core.strings).

An output whose shape follows the content is a place, too: where its elements lie in the heap, how
many bytes they take, its rank and its extents, 64 bits each. If the outputs need more than the
heap's size, that is what is used of it, and their elements are not there.

Both processes compute the same layout from the same specs, so messages carry only the slot's
offset.
"""

import bisect
import contextlib
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from braid.core.descriptors import Descriptor
from braid.core.errors import DeviceOutOfMemory
from braid.core.tensor import BYTES, TensorType

ALIGNMENT = 64  # a cache line; oneDNN and AVX-512 want it
HEAP_HEAD = struct.Struct("<QQ")  # bytes of a heap behind it, and how many of them are used

MOST_AXES = 61
PLACE_BYTES = 8 * (3 + MOST_AXES)  # size of the place of an output whose shape follows the content


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor in a slot."""

    spec: TensorType  # of outputs, extents that follow the content have names
    offset: int  # from the slot's start, in bytes
    size_bytes: int
    shape: tuple[int, ...]  # of one whose shape follows the content: empty


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """All tensors of one batch."""

    inputs: Mapping[str, Field]
    outputs: Mapping[str, Field]
    size_bytes: int  # without the heap
    has_heap: bool = False


def aligned(size_bytes: int) -> int:
    """Round up to the alignment; at least one unit, so that empty tensors have an address."""
    return -(-(size_bytes or 1) // ALIGNMENT) * ALIGNMENT


def slot_layout(inputs: Mapping[str, TensorType], outputs: Mapping[str, TensorType]) -> SlotLayout:
    position = 0
    has_heap = False
    tables: tuple[dict[str, Field], dict[str, Field]] = ({}, {})
    for table, specs in zip(tables, (inputs, outputs), strict=True):
        for name, spec in specs.items():
            # computed once: each batch looks at them
            size_bytes = spec.size_bytes if spec.is_static else PLACE_BYTES
            shape = tuple(dim for dim in spec.shape if spec.is_static and isinstance(dim, int))
            table[name] = Field(spec, position, size_bytes, shape)
            position += aligned(size_bytes)
            has_heap = has_heap or spec.dtype == BYTES or not spec.is_static
    return SlotLayout(*tables, position, has_heap)


class Arena:
    """First-fit allocator over a memfd; low addresses first, so that hot pages stay hot."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = aligned(size_bytes)
        self._file = Descriptor(os.memfd_create("braid-arena"))
        os.ftruncate(self.fileno(), self.size_bytes)
        self._map = mmap.mmap(self.fileno(), self.size_bytes)
        self.view = memoryview(self._map)
        self._free: list[tuple[int, int]] = [(0, self.size_bytes)]  # (offset, size), ascending
        self._used: dict[int, int] = {}

    def fileno(self) -> int:
        """Descriptor for a child process to inherit; ``ValueError`` if the arena is closed."""
        return self._file.fileno()

    @property
    def used_bytes(self) -> int:
        return sum(self._used.values())

    def allocate(self, size_bytes: int) -> int | None:
        """Offset of a region, or None while other batches hold the space.

        Raises ``DeviceOutOfMemory`` if the region would not fit into an empty arena.
        """
        size = aligned(size_bytes)
        if size > self.size_bytes:
            raise DeviceOutOfMemory(
                f"a batch of this model needs {size} bytes of shared memory, the worker has "
                f"{self.size_bytes}; raise BRAID_SHARED_MEMORY_BYTES or send fewer rows"
            )
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, room - size)
                self._used[offset] = size
                return offset
        return None

    def release(self, offset: int) -> None:
        """Give a region back; neighbours that are free are joined."""
        size = self._used.pop(offset)
        index = bisect.bisect(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            self._free[index] = offset, size + self._free[index][1]
        else:
            self._free.insert(index, (offset, size))
        if index and sum(self._free[index - 1]) == offset:
            _, size = self._free.pop(index)
            first, before = self._free[index - 1]
            self._free[index - 1] = first, before + size

    def close(self) -> None:
        """The last view unmaps the memory; the traceback of a failed call may hold one."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()
        self._file.close()
