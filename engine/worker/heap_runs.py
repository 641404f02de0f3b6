"""Runs between a slot with a heap and ONNX Runtime.

    slot: places of texts, heap ──texts──> arrays of str ──ONNX Runtime──> arrays ──> slot, heap

So run models with strings, and those with outputs whose shape follows the content. Such a model is
always one operator (``braid.engine.ops.whole``).
"""

import mmap

import numpy as np

from braid.core.graph import OpGraph
from braid.core.strings import LENGTH
from braid.core.tensor import BYTES
from braid.engine.link.shared_memory import HEAP_HEAD, SlotLayout
from braid.engine.ops.dtypes import text_array
from braid.engine.ops.whole import attributes_of, run_named
from braid.engine.program.program import Program
from braid.engine.runtime.arrays import Array, Arrays, dtype_of

_SPARE_BYTES = 64 << 10


def heap_bytes(graph: OpGraph, layout: SlotLayout) -> int:
    """A guess of what outputs take, beside texts; where it is too little, ``Heap.add`` tells."""
    if not layout.has_heap:
        return 0
    longest = max(attributes_of(unit).longest for unit in graph.operators)
    elements = sum(
        place.spec.elements
        for place in layout.outputs.values()
        if place.spec.is_static and place.spec.dtype == BYTES
    )
    return elements * (LENGTH.size + longest) + _SPARE_BYTES


class Heap:
    """Texts, and outputs whose shape follows the content, of one slot."""

    def __init__(self, arena: mmap.mmap, start: int) -> None:
        self._memory = memoryview(arena)
        self._head = start
        self._start = start + HEAP_HEAD.size
        self._size, self._used = HEAP_HEAD.unpack_from(arena, start)

    def texts(self, places: Array) -> Array:
        spots = _spots(places)
        content = bytes(self._memory[self._start : self._start + self._used])
        strings = [str(content[at : at + size], "utf-8") for at, size in spots.tolist()]
        return text_array(strings, places.shape)

    def add(self, data: bytes | memoryview) -> int:
        """Write data and return its offset; data that does not fit is only counted."""
        at = int(self._used)
        self._used += len(data)
        if self._used <= self._size:
            self._memory[self._start + at : self._start + self._used] = data
        HEAP_HEAD.pack_into(self._memory, self._head, self._size, self._used)
        return at

    def add_texts(self, array: Array) -> Array:
        """Write strings, and return the offset and the size of each text."""
        texts = [text.encode() for text in array.reshape(-1).tolist()]
        sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
        ends = np.cumsum(sizes + LENGTH.size, dtype=np.uint64)
        parts = (part for text in texts for part in (LENGTH.pack(len(text)), text))
        at = self.add(b"".join(parts))
        return np.stack((ends - sizes + np.uint64(at), sizes), axis=1).astype(np.uint32)

    def add_output(self, array: Array, place: Array) -> None:
        is_text = array.dtype.kind in "OU"
        elements = self.add_texts(array.astype(object)) if is_text else array
        data = np.ascontiguousarray(elements).reshape(-1).view(np.uint8)
        record = (self.add(data.data), data.size, array.ndim, *array.shape)
        place.view(np.uint64)[: len(record)] = record


def run_on_heap(program: Program, inputs: Arrays, outputs: Arrays, heap: Heap) -> None:
    """Run a program of one operator on the views of a slot.

    Strings come as places of their texts, outputs that follow the content as bytes. Raises
    ``InvalidRequest`` if the operator cannot use the values, or ``RunStopped``.
    """
    feeds = {
        name: heap.texts(array) if dtype_of(array) == BYTES else array
        for name, array in inputs.items()
    }
    for name, (result, spec) in run_named(program.graph, program.constants(), feeds).items():
        if not spec.is_static:
            heap.add_output(np.asarray(result), outputs[name])
        elif dtype_of(outputs[name]) == BYTES:
            spots = heap.add_texts(np.asarray(result, object))
            _spots(outputs[name])[:] = spots
        else:
            outputs[name][...] = result


def _spots(places: Array) -> Array:
    return places.reshape(-1).view(np.uint32).reshape(-1, 2)
