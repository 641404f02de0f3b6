"""Tensors over the slots of shared memory that requests travel in."""

from __future__ import annotations

import mmap
from typing import TypeAlias

import torch
from torch import Tensor

from braid.engine.link.slot_layout import Field, SlotLayout
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.worker.models import spec_shape

Views: TypeAlias = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Inputs and outputs by name."""

MAX_KEPT = 4096


class SlotViews:
    """Tensors over slots, kept since slots are used again."""

    def __init__(self, arena: mmap.mmap) -> None:
        self._arena = arena
        self._kept: dict[tuple[int, int], Views] = {}  # by executable and offset

    def of(self, number: int, offset: int, layout: SlotLayout) -> Views:
        """Inputs and outputs of executable ``number`` in the slot at ``offset``."""
        key = (number, offset)
        if key not in self._kept:
            if len(self._kept) > MAX_KEPT:
                self._kept.clear()
            self._kept[key] = (
                {name: self._view(field, offset) for name, field in layout.inputs.items()},
                {name: self._view(field, offset) for name, field in layout.outputs.items()},
            )
        return self._kept[key]

    def forget(self, number: int) -> None:
        """Drop the views of one executable."""
        for key in [key for key in self._kept if key[0] == number]:
            del self._kept[key]

    def clear(self) -> None:
        """Drop all views."""
        self._kept.clear()

    def _view(self, field: Field, offset: int) -> Tensor:
        dtype, shape = torch_dtype(field.spec.dtype), spec_shape(field.spec)
        count = field.spec.elements
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._arena, dtype=dtype, count=count, offset=offset + field.offset)
        return flat.reshape(shape)
