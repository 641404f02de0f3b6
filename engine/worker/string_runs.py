"""Runs of models with strings: between a slot and ONNX Runtime, without torch's tensors.

    slot: places of texts, heap ──texts──> arrays of str ──ONNX Runtime──> arrays ──> slot, heap

Such a model is always one operator (``braid.engine.ops.whole``).
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import OpGraph
from braid.core.strings import LENGTH
from braid.engine.link.shared_memory import HEAP_HEAD, SlotLayout
from braid.engine.ops.dtypes import is_strings, tensor_of, text_array
from braid.engine.ops.whole import KIND, attributes_of, run_arrays
from braid.engine.program.program import Program

_SPARE_BYTES = 64 << 10

Tensors = Mapping[str, Tensor]


def text_bytes(graph: OpGraph, layout: SlotLayout) -> int:
    """Bytes that the texts of outputs may take, beside what the texts of the inputs take."""
    if not layout.has_strings:
        return 0
    longest = max(attributes_of(unit).longest for unit in graph.operators)
    elements = sum(
        place.spec.elements for place in layout.outputs.values() if place.spec.dtype == "BYTES"
    )
    return elements * (LENGTH.size + longest) + _SPARE_BYTES


class Heap:
    """Texts of one slot."""

    def __init__(self, arena: mmap.mmap, start: int) -> None:
        self._memory = memoryview(arena)
        self._head = start
        self._start = start + HEAP_HEAD.size
        self._size, self._used = HEAP_HEAD.unpack_from(arena, start)

    def texts(self, places: Tensor) -> np.ndarray[Any, Any]:
        spots = _spots(places)
        content = bytes(self._memory[self._start : self._start + self._used])
        found = [str(content[at : at + size], "utf-8") for at, size in spots.tolist()]
        return text_array(found, tuple(places.shape))

    def write(self, name: str, array: np.ndarray[Any, Any], places: Tensor) -> None:
        """Write an output's strings, and into ``places`` where they lie.

        Raises:
            InvalidRequest: there is no room for them.
        """
        texts = [text.encode() for text in array.reshape(-1).tolist()]
        sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
        ends = np.cumsum(sizes + LENGTH.size, dtype=np.uint64)
        total = int(ends[-1]) if len(texts) else 0
        if total > self._size - self._used:
            raise InvalidRequest(
                f"the strings of output {name!r} take {total} bytes, and there is room for "
                f"{self._size - self._used}; send fewer rows, or shorter strings"
            )
        at = self._start + self._used
        self._memory[at : at + total] = b"".join(
            part for text in texts for part in (LENGTH.pack(len(text)), text)
        )
        spots = _spots(places)
        spots[:, 0], spots[:, 1] = ends - sizes + self._used, sizes
        self._used += total
        HEAP_HEAD.pack_into(self._memory, self._head, self._size, self._used)


def run_strings(program: Program, inputs: Tensors, outputs: Tensors, heap: Heap) -> None:
    """Run a model on the views of a slot.

    Args:
        program: of one operator.
        inputs: by name; of strings, where their texts lie.
        outputs: to be filled.
        heap: of that slot.

    Raises:
        InvalidRequest: an operator cannot use the values, or the outputs have no room.
        RunStopped: the run was to end.
    """
    (unit,) = program.graph.operators
    assert unit.kind == KIND, unit.kind
    whole, constants = attributes_of(unit), program.constants()
    feeds = {
        name: heap.texts(tensor) if is_strings(tensor) else tensor.numpy()
        for name, tensor in inputs.items()
    }
    wanted = dict(zip(unit.outputs, whole.empty_results(list(inputs.values())), strict=True))
    results = run_arrays(constants[unit.inputs[0]], feeds, whole, list(wanted.values()))
    made = dict(zip(unit.outputs, results, strict=True))
    for name, value in program.graph.outputs.items():
        if is_strings(outputs[name]):
            heap.write(name, np.asarray(made[value], object), outputs[name])
        else:
            outputs[name].copy_(tensor_of(np.array(made[value], order="C")))


def _spots(places: Tensor) -> np.ndarray[Any, Any]:
    """Offset and size of each text."""
    if not places.numel():
        return np.empty((0, 2), np.uint32)
    return places.reshape(-1).view(torch.int32).numpy().view(np.uint32).reshape(-1, 2)
