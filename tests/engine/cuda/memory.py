"""Device memory of the fake: blocks that come back to the stream they were allocated on.

As in torch's caching allocator a freed block is given at once to the next allocation of the same
pool and stream, whoever may still read it. Tensors live in numpy arrays, so that a block is free
exactly when the last tensor in it is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GRANULE = 512  # bytes; sizes and addresses are multiples of it, as CUDA's are

Home = tuple[object, object]  # pool (None: the general one) and stream


@dataclass(eq=False)
class Block:
    number: int
    home: Home
    memory: NDArray[np.uint8]

    def holds(self, tensor: Tensor) -> bool:
        start = self.memory.ctypes.data
        return start <= tensor.data_ptr() < start + self.memory.size

    def poison(self) -> None:
        self.memory.fill(0xFF)  # NaN in every floating-point type


@dataclass(frozen=True)
class Ref:
    """A tensor in a block, which it does not keep alive."""

    block: Block
    offset: int  # bytes
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        flat = torch.from_numpy(self.block.memory).view(self.dtype)
        return flat.as_strided(self.shape, self.stride, self.offset // self.dtype.itemsize)


@dataclass
class Allocator:
    capacity_bytes: int
    freed: Callable[[Block], None]
    blocks: list[Block] = field(default_factory=list)
    free: dict[Home, list[Block]] = field(default_factory=dict)
    allocated_bytes: int = 0
    peak_bytes: int = 0
    numbers: count[int] = field(default_factory=count)

    @property
    def reserved_bytes(self) -> int:
        return sum(block.memory.size for block in self.blocks)

    def allocate(self, home: Home, size_bytes: int) -> Tensor:
        """A flat uint8 tensor that frees its block when its memory is no longer referenced."""
        size = -(-max(size_bytes, 1) // GRANULE) * GRANULE
        fitting = [block for block in self.free.get(home, []) if block.memory.size >= size]
        if fitting:
            block = min(fitting, key=lambda block: block.memory.size)
            self.free[home].remove(block)
        else:
            block = self._reserve(home, size)
        held = block.memory[:size]
        weakref.finalize(held, self._take_back, block).atexit = False
        self.allocated_bytes += block.memory.size
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return torch.from_numpy(held)

    def _reserve(self, home: Home, size: int) -> Block:
        if self.reserved_bytes + size > self.capacity_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        raw = np.empty(size + GRANULE, np.uint8)
        start = -raw.ctypes.data % GRANULE
        block = Block(next(self.numbers), home, raw[start : start + size])
        block.poison()
        self.blocks.append(block)
        return block

    def _take_back(self, block: Block) -> None:
        self.allocated_bytes -= block.memory.size
        self.free.setdefault(block.home, []).append(block)
        self.freed(block)

    def trim(self, pools_in_use: Container[object]) -> None:
        """Forget free blocks; graphs still write to those of their pools."""
        for (pool, _), blocks in self.free.items():
            if pool not in pools_in_use:
                for block in blocks:
                    self.blocks.remove(block)
                blocks.clear()

    def ref(self, tensor: Tensor) -> Ref | None:
        """Where a tensor lies; None if not on the device."""
        for block in self.blocks:
            if block.holds(tensor):
                offset = tensor.data_ptr() - block.memory.ctypes.data
                shape, stride = tuple(tensor.shape), tuple(tensor.stride())
                return Ref(block, offset, tensor.dtype, shape, stride)
        return None

    def place(self, home: Home, results: Sequence[Tensor]) -> list[Tensor]:
        """Tensors shaped and strided like ``results``; those that share memory still do."""
        bases: dict[int, Tensor] = {}
        for result in results:
            storage = result.untyped_storage()
            if storage.data_ptr() not in bases:
                bases[storage.data_ptr()] = self.allocate(home, storage.nbytes())
        return [
            bases[result.untyped_storage().data_ptr()]
            .view(result.dtype)
            .as_strided(result.shape, result.stride(), result.storage_offset())
            for result in results
        ]
