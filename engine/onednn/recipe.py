"""Recipes: the primitives that compute a unit, and the data that each one reads and writes.

Recipe ──braid.engine.program.kernel──> a function of tensors    one unit, called from Python
       └──braid.engine.cpu.segments──> part of a native segment: many units without Python
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from braid.core.tensor import DTYPE_BYTES
from braid.engine.onednn.library import ARRAY_TYPES, Array, Computation, aligned


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
        array = memory.view(ARRAY_TYPES[self.dtype])
        if not self.images:
            return array.reshape(self.seen_as or self.shape)
        n, c, h, w = self.shape
        images = array.reshape(n, h, w, c).transpose(0, 3, 1, 2)
        return images if self.seen_as is None else images.reshape(self.seen_as)


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
