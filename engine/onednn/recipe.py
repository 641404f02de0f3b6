"""Recipes: the primitives that compute a unit, and the data that each one reads and writes.

Recipe ──run_from──> a function of tensors          one unit, called from Python
       └──braid.engine.cpu.segments──> part of a native segment: many units without Python
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from braid.engine.onednn.library import Computation, Run


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for one tensor: dense, channels_last if it is a batch of images."""

    shape: tuple[int, ...]
    images: bool
    seen_as: tuple[int, ...] | None = None  # shape of the value, where it is another one
    dtype: torch.dtype = torch.float32

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in memory in the order of the value's shape."""
        return not self.images or self.shape[1] == 1 or math.prod(self.shape[2:]) == 1

    @property
    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.images else torch.contiguous_format

    def empty(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, memory_format=self.layout)

    def fresh(self) -> Tensor:
        if self.seen_as is not None:
            return self.empty().reshape(self.seen_as)
        if not self.images:
            return torch.empty(self.shape, dtype=self.dtype)
        _, c, h, w = self.shape
        return torch.empty_strided(self.shape, (h * w * c, 1, w * c, c), dtype=self.dtype)

    def over(self, memory: Tensor) -> Tensor:
        """This buffer's tensor over bytes of the right number."""
        memory = memory.view(self.dtype)
        if not self.images:
            return memory.view(self.seen_as or self.shape)
        n, c, h, w = self.shape
        images = memory.view(n, h, w, c).permute(0, 3, 1, 2)
        return images.reshape(self.seen_as) if self.seen_as is not None else images


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
    fixed: Mapping[int, Tensor]  # argument -> weights, bias
    places: Mapping[int, Place]  # argument -> data that moves


@dataclass(frozen=True, slots=True)
class Recipe:
    """Actions of a unit on some threads; with ``views`` its results are where its operand is."""

    actions: tuple[Action, ...]
    operands: tuple[tuple[int, bool], ...]  # position among the unit's inputs, whether images
    results: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...] = ()
    views: tuple[int, ...] = ()  # of results that lie in operand 0: bytes behind its start


def run_from(recipe: Recipe) -> Run:
    plain = len(recipe.actions) == len(recipe.results) == 1 and not recipe.temporaries
    plain = plain and not any(place.offset_bytes for place in recipe.actions[0].places.values())
    return _run_plain(recipe) if plain else _run_any(recipe)


def _run_plain(recipe: Recipe) -> Run:
    (action,), (result,) = recipe.actions, recipe.results
    launch = action.computation.launcher(action.fixed, tuple(action.places))
    formats = [torch.channels_last if im else torch.contiguous_format for _, im in recipe.operands]
    positions = [position for position, _ in recipe.operands]
    shape, layout, empty, seen_as = result.shape, result.layout, torch.empty, result.seen_as
    dtype = result.dtype

    def one(x: Tensor, *_: Tensor | None) -> Tensor:
        if not x.is_contiguous(memory_format=layout):
            x = x.contiguous(memory_format=layout)
        out = empty(shape, dtype=dtype, memory_format=layout)
        launch(x, out)
        return out

    def several(*inputs: Tensor) -> Tensor:
        operands = [
            inputs[position].contiguous(memory_format=wanted)
            for position, wanted in zip(positions, formats, strict=True)
        ]
        out = empty(shape, dtype=dtype, memory_format=layout)
        launch(*operands, out)
        return out.reshape(seen_as) if seen_as is not None else out

    return one if positions == [0] and formats == [layout] and seen_as is None else several


def _run_any(recipe: Recipe) -> Run:
    launches: list[tuple[Callable[..., None], tuple[Place, ...]]] = [
        (
            action.computation.launcher(action.fixed, tuple(action.places)),
            tuple(action.places.values()),
        )
        for action in recipe.actions
    ]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        data = {
            "operand": [
                inputs[position].contiguous(
                    memory_format=torch.channels_last if images else torch.contiguous_format
                )
                for position, images in recipe.operands
            ],
            "result": [buffer.empty() for buffer in recipe.results],
            "temporary": [buffer.empty() for buffer in recipe.temporaries],
        }
        for launch, places in launches:
            launch(*[_Shifted(data[p.kind][p.index], p.offset_bytes) for p in places])
        return tuple(
            tensor.reshape(buffer.seen_as) if buffer.seen_as is not None else tensor
            for tensor, buffer in zip(data["result"], recipe.results, strict=True)
        )

    return run


class _Shifted:
    """Memory of a tensor from an offset on, for a launcher."""

    def __init__(self, tensor: Tensor, offset_bytes: int) -> None:
        self._address = tensor.data_ptr() + offset_bytes

    def data_ptr(self) -> int:
        return self._address
