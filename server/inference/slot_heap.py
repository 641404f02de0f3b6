"""The heap of a batch's slot: texts of strings, and outputs whose shape follows the content.

Their places are in the slot's fields. ``braid.engine.link.shared_memory`` describes both.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from braid.core.errors import WorkerFault
from braid.core.pieces import Work, joined
from braid.core.strings import LENGTH, PIECE_STRINGS, Strings
from braid.core.tensor import BYTES, DTYPE_BYTES, TensorType
from braid.engine.link.shared_memory import HEAP_HEAD, MOST_AXES, Field
from braid.server.devices.executables import Executable
from braid.server.inference.batching.queues import Piece

GROWTH = 4
"""Room for the strings that come out, by the bytes of those that go in."""

Places = np.ndarray[Any, np.dtype[np.uint32]]


def heap_bytes(ready: Executable, pieces: Sequence[Piece]) -> int:
    given = sum(
        len(content)
        for piece in pieces
        for content in piece.request.inputs.values()
        if isinstance(content, Strings)
    )
    return HEAP_HEAD.size + given * (1 + GROWTH) + ready.heap_bytes


class SlotHeap:
    """Heap of one slot, as the front end sees it."""

    def __init__(self, memory: memoryview, ready: Executable, offset: int) -> None:
        self._memory = memory
        self._slot = offset
        self._head = offset + ready.layout.size_bytes
        self._start = self._head + HEAP_HEAD.size

    @property
    def lacking_bytes(self) -> int:
        """Bytes that outputs need beyond those of the heap; if any, they are not there."""
        room, used = HEAP_HEAD.unpack_from(self._memory, self._head)
        return max(0, int(used - room))

    def field(self, place: Field, start: int) -> Field:
        """Return the field of an output whose shape follows the content, in the slot's terms.

        ``start`` is the place's own offset in the shared memory. Raises WorkerFault: the worker
        left a place that lies outside the heap.
        """
        record = np.frombuffer(self._memory[start : start + place.size_bytes], np.uint64).tolist()
        at, size_bytes, rank = record[:3]
        shape = tuple(record[3 : 3 + min(rank, MOST_AXES)])
        spec = TensorType(place.spec.dtype, shape)
        _, used = HEAP_HEAD.unpack_from(self._memory, self._head)
        is_whole = len(shape) == rank and math.prod(shape) * DTYPE_BYTES[spec.dtype] == size_bytes
        if not is_whole or at + size_bytes > used:
            raise WorkerFault("the device worker answered with an output that is not there")
        first = self._start + at - self._slot
        return Field(spec, first, size_bytes, shape)

    def begin(self, size_bytes: int) -> None:
        """Make an empty heap of ``size_bytes``, its head included."""
        HEAP_HEAD.pack_into(self._memory, self._head, size_bytes - HEAP_HEAD.size, 0)

    def add(self, strings: Strings, first: int, last: int) -> Places:
        """Copy elements ``first`` up to, without, ``last`` of an input; returns their places."""
        if first == last:
            return np.empty((0, 2), np.uint32)
        room, used = HEAP_HEAD.unpack_from(self._memory, self._head)
        part, begin = strings.part(first, last)
        assert used + len(part) <= room, "the slot was made for these pieces"
        at = self._start + used
        self._memory[at : at + len(part)] = part
        HEAP_HEAD.pack_into(self._memory, self._head, room, used + len(part))
        ends = np.frombuffer(strings.ends, np.uint32)[first:last] - np.uint32(begin)
        starts = np.concatenate(([0], ends[:-1])).astype(np.uint32) + np.uint32(LENGTH.size)
        return np.stack((starts + np.uint32(used), ends - starts), axis=1)

    def raw(self, places: Places) -> Work[bytes]:
        """Raw form of the elements at ``places``. WorkerFault: they lie outside the heap."""
        _, used = HEAP_HEAD.unpack_from(self._memory, self._head)
        parts = list[bytes | memoryview]()
        for at in range(0, len(places), PIECE_STRINGS):
            if at:
                yield
            some = places[at : at + PIECE_STRINGS].astype(np.int64)
            starts, ends = some[:, 0] - LENGTH.size, some[:, 0] + some[:, 1]
            if starts.min() < 0 or ends.max() > used:
                raise WorkerFault("the device worker answered with strings that are not there")
            if np.array_equal(starts[1:], ends[:-1]):  # one after the other, as they are written
                starts, ends = starts[:1], ends[-1:]
            parts += (
                self._memory[self._start + start : self._start + end]
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            )
        return (yield from joined(parts))


def places_of(whole: memoryview, place: Field) -> Places:
    """Return offset and size of each text of a field, as [*shape, 2]."""
    assert place.spec.dtype == BYTES
    return np.frombuffer(whole, np.uint32).reshape(*place.shape, 2)
