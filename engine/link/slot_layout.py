"""Where the tensors of one batch lie inside their slot of shared memory.

    slot = input 0 | input 1 | ... | output 0 | output 1 | ...      each aligned to 64 bytes

Both processes compute the same layout from the same specs, so messages carry only the slot's
offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from braid.core.tensor import TensorType

ALIGNMENT = 64  # a cache line; oneDNN and AVX-512 want it


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor in a slot."""

    spec: TensorType  # static
    offset: int  # from the slot's start, in bytes
    size_bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """All tensors of one batch."""

    inputs: Mapping[str, Field]
    outputs: Mapping[str, Field]
    size_bytes: int


def aligned(size_bytes: int) -> int:
    """Round up to the alignment; at least one unit, so that empty tensors have an address."""
    return max(ALIGNMENT, -(-size_bytes // ALIGNMENT) * ALIGNMENT)


def slot_layout(inputs: Mapping[str, TensorType], outputs: Mapping[str, TensorType]) -> SlotLayout:
    """Lay out static specs in order, inputs first."""
    position = 0
    tables: tuple[dict[str, Field], dict[str, Field]] = ({}, {})
    for table, specs in zip(tables, (inputs, outputs), strict=True):
        for name, spec in specs.items():
            size_bytes = spec.size_bytes  # computed once: each batch looks at them
            shape = tuple(dim for dim in spec.shape if isinstance(dim, int))
            table[name] = Field(spec, position, size_bytes, shape)
            position += aligned(size_bytes)
    return SlotLayout(*tables, size_bytes=position)
