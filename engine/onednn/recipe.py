"""Recipes: the primitives that compute a unit, and the data that each one reads and writes.

Recipe ──launch_of──> a function of addresses                    one unit, called from Python
       └──braid.engine.cpu.segments──> part of a native segment: many units without Python
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from braid.core.tensor import DTYPE_BYTES
from braid.engine.onednn.library import Computation
from braid.engine.runtime.arrays import ARRAY_TYPES, Array, address_of, aligned, strides_of


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for one tensor: dense, channels_last if it is a batch of images."""

    shape: tuple[int, ...]
    images: bool
    seen_as: tuple[int, ...] | None = None  # shape of the value, where it is another one
    dtype: str = "FP32"

    @property
    def size_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in memory in the order of the value's shape."""
        return not self.images or self.shape[1] == 1 or math.prod(self.shape[2:]) == 1

    def fresh(self) -> Array:
        return self.over(aligned(self.size_bytes))

    def over(self, memory: Array) -> Array:
        """This buffer's array over bytes of the right number."""
        dtype = ARRAY_TYPES[self.dtype]
        if not self.images:
            return np.ndarray(self.seen_as or self.shape, dtype, memory)
        strides = [dtype.itemsize * step for step in strides_of(self.shape, images=True)]
        images = np.ndarray(self.shape, dtype, memory, 0, strides)
        return images if self.seen_as is None else images.reshape(self.seen_as)


def lies_as(array: Array, *, images: bool) -> bool:
    """Whether numbers lie in channels_last, or in the order of their shape."""
    if images:
        return array.ndim == 4 and array.transpose(0, 2, 3, 1).flags.c_contiguous
    return array.flags.c_contiguous


@dataclass(frozen=True, slots=True)
class Place:
    """Place of data that an action reads or writes."""

    kind: Literal["operand", "result", "temporary"]
    index: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """One execution."""

    computation: Computation
    fixed: Mapping[int, Array]  # argument -> weights, bias
    places: Mapping[int, Place]  # argument -> data that moves


@dataclass(frozen=True, slots=True)
class Recipe:
    """Actions of a unit on some threads; with ``views`` its results are where its operand is."""

    actions: tuple[Action, ...]
    operands: tuple[tuple[int, bool], ...]  # position among the unit's inputs, whether images
    results: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...] = ()
    views: tuple[int, ...] = ()  # of results that lie in operand 0: bytes behind its start


Launch = Callable[[Sequence[int]], tuple[Array, ...]]
"""From addresses of operands, which lie as a recipe wants them, to results."""


def launch_of(recipe: Recipe) -> Launch:
    launches = [
        (one.computation.launcher(one.fixed, tuple(one.places)), tuple(one.places.values()))
        for one in recipe.actions
    ]

    def launch(operands: Sequence[int]) -> tuple[Array, ...]:
        results = tuple(buffer.fresh() for buffer in recipe.results)
        temporaries = [buffer.fresh() for buffer in recipe.temporaries]
        addresses = {
            "operand": operands,
            "result": [*map(address_of, results)],
            "temporary": [*map(address_of, temporaries)],
        }
        for execute, places in launches:
            execute(*[addresses[p.kind][p.index] + p.offset_bytes for p in places])
        return results

    return launch
