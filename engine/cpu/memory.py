"""Activation memory: which values share which bytes, and the memory itself.

Two values may share bytes if every step that touches one is certain to be over before the other is
made, on whatever lanes they run. Offsets are given greedily, largest value first (Pisarchyk & Lee
2020, "Greedy by Size").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braid.engine.onednn.recipe import Buffer
from braid.engine.runtime.arrays import ALIGNMENT, Array, address_of, aligned
from braid.engine.runtime.yielding import YieldToRequests, no_pause


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value between the step that makes it and the last one that reads it, as bit sets."""

    size_bytes: int
    touched: int  # steps that make or read it
    before: int  # steps that are certain to be over when it is made

    def may_share(self, other: Lifetime) -> bool:
        """Whether the last reader of one value is always over before the other value is made."""
        return not (self.touched & ~other.before and other.touched & ~self.before)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offset of each value in activation memory, and the bytes needed."""

    offsets: Mapping[int, int]  # value -> bytes from the start
    peak_bytes: int


def plan_memory(lifetimes: Mapping[int, Lifetime], pause: YieldToRequests = no_pause) -> MemoryPlan:
    placed: list[tuple[int, int, Lifetime]] = []  # offset, end, lifetime; by offset
    offsets: dict[int, int] = {}
    for value in sorted(lifetimes, key=lambda v: (-lifetimes[v].size_bytes, v)):
        pause()
        life = lifetimes[value]
        size = -(-life.size_bytes // ALIGNMENT) * ALIGNMENT
        at = _first_gap(placed, life, size)
        offsets[value] = at
        placed.append((at, at + size, life))
        placed.sort(key=lambda item: item[0])
    return MemoryPlan(offsets, max((end for _, end, _ in placed), default=0))


def _first_gap(placed: Sequence[tuple[int, int, Lifetime]], life: Lifetime, size: int) -> int:
    at = 0
    for start, end, other in placed:
        if life.may_share(other):
            continue
        if start - at >= size:
            break
        at = max(at, end)
    return at


class ActivationMemory:
    """Memory for the activations of one run at a time."""

    def __init__(self) -> None:
        self._memory, self.start = aligned(0), 0
        self.generation = 0  # changes when the memory moves

    def reserve(self, size_bytes: int) -> None:
        """Grow to at least ``size_bytes``; growing loses the content."""
        if size_bytes > self._memory.size:
            self.free()  # the old memory first
            self._memory = aligned(size_bytes)
            self.start = address_of(self._memory)

    def free(self) -> None:
        self._memory, self.start = aligned(0), 0
        self.generation += 1

    def holds(self, array: Array) -> bool:
        return 0 <= address_of(array) - self.start < self._memory.size

    def over(self, buffer: Buffer, offset_bytes: int) -> Array:
        """A buffer's array at this place."""
        return buffer.over(self._memory[offset_bytes : offset_bytes + buffer.size_bytes])
