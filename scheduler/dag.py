"""Sets of units as bit masks, and the relations of a graph in that form.

A set of units is an int: bit i stands for unit i. Union is ``|``, intersection ``&``, and an
inclusion ``a <= b`` is ``not a & ~b``, each a single machine operation for blocks of this size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dag:
    """The edges and paths of a graph: one mask per unit, itself never included."""

    before: tuple[int, ...]  # direct predecessors
    after: tuple[int, ...]  # direct successors
    ancestors: tuple[int, ...]
    descendants: tuple[int, ...]

    @staticmethod
    def of(predecessors: Sequence[Sequence[int]]) -> Dag:
        """Relations of a graph whose units are in topological order."""
        n = len(predecessors)
        before = [mask_of(row) for row in predecessors]
        after, ancestors, descendants = [0] * n, [0] * n, [0] * n
        for unit, row in enumerate(predecessors):
            ancestors[unit] = before[unit]
            for p in row:
                ancestors[unit] |= ancestors[p]
                after[p] |= 1 << unit
        for unit in reversed(range(n)):
            descendants[unit] = after[unit]
            for successor in bits(after[unit]):
                descendants[unit] |= descendants[successor]
        return Dag(tuple(before), tuple(after), tuple(ancestors), tuple(descendants))

    def __len__(self) -> int:
        return len(self.before)

    @property
    def everything(self) -> int:
        return (1 << len(self.before)) - 1


def mask_of(units: Iterable[int]) -> int:
    mask = 0
    for unit in units:
        mask |= 1 << unit
    return mask


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
