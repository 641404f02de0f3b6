"""Element types and tensor types.

The dtype names are those of the Open Inference Protocol v2, which every client already speaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braid.core.errors import InvalidArtefact

BYTES = "BYTES"
"""Dtype of strings, which only models that ONNX Runtime runs whole take and give."""

# OIP v2 name -> bytes per element. Of a string, the bytes of its place in a slot
# (braid.engine.link.shared_memory): the text lies elsewhere.
DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "INT8": 1,
    "UINT16": 2,
    "INT16": 2,
    "UINT32": 4,
    "INT32": 4,
    "UINT64": 8,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
    BYTES: 8,
}
ARRAY_NAMES: Mapping[str, str] = {
    name: name.replace("BF", "bfloat").replace("FP", "float").lower()
    for name in DTYPE_BYTES
    if name != BYTES
}
"""Names of the types of numbers in numpy, with ml_dtypes, and in torch: ``float32`` of FP32."""

Dim = int | str
"""Extent of an axis: a number, or a symbol (``"batch"`` or one that the model declares)."""

BATCH = "batch"
"""Symbol of the batch dimension, whatever the model's file calls it."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor; symbols stand for extents known only per request."""

    dtype: str
    shape: tuple[Dim, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise InvalidArtefact(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        for dim in self.shape:
            if isinstance(dim, int) and dim < 0:
                raise InvalidArtefact(f"negative extent in shape {list(self.shape)}")

    @property
    def is_static(self) -> bool:
        """True if no extent is a symbol."""
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def elements(self) -> int:
        assert self.is_static, f"shape {self.shape} is symbolic"
        return math.prod(dim for dim in self.shape if isinstance(dim, int))

    @property
    def size_bytes(self) -> int:
        """Size of the raw little-endian bytes, of strings without the text. Static shapes only."""
        return self.elements * DTYPE_BYTES[self.dtype]

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this type may have ``shape``; a symbol is any extent."""
        return len(shape) == len(self.shape) and all(
            isinstance(dim, str) or dim == extent
            for dim, extent in zip(self.shape, shape, strict=True)
        )

    def at_rows(self, rows: int) -> TensorType:
        """Return the type with so many rows, along its first axis."""
        return TensorType(self.dtype, (rows, *self.shape[1:]))

    def bind(self, symbols: Mapping[str, int]) -> TensorType:
        """Replace each symbol found in ``symbols`` by its extent."""
        return TensorType(
            self.dtype,
            tuple(symbols.get(d, d) if isinstance(d, str) else d for d in self.shape),
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def has_open_extents(inputs: Mapping[str, TensorType]) -> bool:
    """Return whether an extent other than the number of rows is a symbol."""
    dims = {dim for spec in inputs.values() for dim in spec.shape}
    return any(isinstance(dim, str) and dim != BATCH for dim in dims)


def outputs_at(
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, TensorType],
    given: Mapping[str, TensorType],
) -> dict[str, TensorType]:
    """Return specs of a model's outputs where its inputs are as ``given``.

    Extents that no input names stay open.
    """
    extents = {
        dim: extent
        for name, spec in inputs.items()
        for dim, extent in zip(spec.shape, given[name].shape, strict=True)
        if isinstance(dim, str) and isinstance(extent, int)
    }
    return {name: spec.bind(extents) for name, spec in outputs.items()}


def guess_text(guessed: Mapping[str, int]) -> str:
    """Say what schedules are made for where extents were guessed, and what other shapes get."""
    extents = ", ".join(f"{name}={extent}" for name, extent in guessed.items())
    return (
        f"scheduled for {extents}, guessed as the file leaves it open (register with --input-shape "
        "to say another); other shapes are answered by ONNX Runtime where it was right, or by the "
        "sequential plan, prepared at first sight"
    )
