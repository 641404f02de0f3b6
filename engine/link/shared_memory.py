"""The shared memory of two processes, and who owns which part of it.

An anonymous file (memfd): a child process inherits the descriptor, no name can leak or be guessed,
and the kernel frees it when both processes are gone, however they die. Pages are committed when
first touched. Only one of the two allocates; the other one reads and writes where it is told.
"""

from __future__ import annotations

import bisect
import mmap
import os

from braid.core.errors import DeviceOutOfMemory
from braid.engine.link.slot_layout import aligned


class Arena:
    """First-fit allocator over a memfd; low addresses first, so that hot pages stay hot."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = aligned(size_bytes)
        self.fd = os.memfd_create("braid-arena")
        os.ftruncate(self.fd, self.size_bytes)
        self._map = mmap.mmap(self.fd, self.size_bytes)
        self.view = memoryview(self._map)
        self._free: list[tuple[int, int]] = [(0, self.size_bytes)]  # (offset, size), ascending
        self._used: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now."""
        return sum(self._used.values())

    def allocate(self, size_bytes: int) -> int | None:
        """Offset of a region, or None while other batches hold the space.

        Raises:
            DeviceOutOfMemory: the region would not fit into an empty arena.
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
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            offset, before = self._free.pop(index - 1)
            size += before
            index -= 1
        self._free.insert(index, (offset, size))

    def close(self) -> None:
        """Unmap and close. Views handed out must be gone."""
        self.view.release()
        self._map.close()
        os.close(self.fd)
