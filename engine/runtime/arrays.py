"""Arrays of numpy, in the memory of a CPU: their types, addresses and memory.

Types have the names of the Open Inference Protocol.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from braid.core.tensor import ARRAY_NAMES, BYTES, TensorType

Array = NDArray[Any]
Arrays = Mapping[str, Array]

ARRAY_TYPES: Mapping[str, np.dtype[Any]] = {
    **{name: np.dtype(in_numpy) for name, in_numpy in ARRAY_NAMES.items()},
    BYTES: np.dtype(np.complex64),
}
"""Types of arrays by name: numpy has no BF16, ml_dtypes has; strings are 8 bytes that name one."""

_NAMES = {dtype: name for name, dtype in ARRAY_TYPES.items()}

ALIGNMENT = 64  # bytes of a cache line

_Pointer = ctypes.c_void_p
_DATA = object.__basicsize__  # numpy's PyArrayObject is the head of an object, then this address


def dtype_of(array: Array) -> str:
    return _NAMES[array.dtype]


def holds_floats(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype == bfloat16


def are_finite(arrays: Arrays) -> bool:
    """Whether no element is NaN or infinite; may say False for sums that overflow."""
    return all(map(_is_finite, arrays.values()))


def _is_finite(array: Array) -> bool:
    if not holds_floats(array):
        return True
    if array.itemsize == 2:
        exponent = 0x7C00 if array.dtype.kind == "f" else 0x7F80  # all of its bits
        return int((array.view(np.uint16) & exponent).max(initial=0)) < exponent
    return math.isfinite(np.einsum("i->", array.reshape(-1)))  # a third of np.sum's time


def address_of(array: Array) -> int:
    """Where its first element is: ``array.ctypes.data``, which takes ten times as long."""
    return _Pointer.from_address(id(array) + _DATA).value or 0


def static_shape(spec: TensorType) -> list[int]:
    assert spec.is_static, f"{spec} is symbolic"
    return [int(dim) for dim in spec.shape]


def strides_of(shape: Sequence[int], *, images: bool = False) -> tuple[int, ...]:
    """Distances between elements along each axis; ``images`` [n, c, h, w] lie in channels_last."""
    if images:
        _, c, h, w = shape
        return h * w * c, 1, w * c, c
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def aligned(size_bytes: int, *, in_huge_pages: bool = True) -> Array:
    """Bytes that begin at a cache line.

    numpy asks for huge pages; without them weights are packed in 0.6 of the time.
    """
    size = size_bytes + ALIGNMENT
    memory = np.empty(size, np.uint8) if in_huge_pages else np.frombuffer(bytearray(size), np.uint8)
    start = -address_of(memory) % ALIGNMENT
    return memory[start : start + size_bytes]


def empty_of(spec: TensorType) -> Array:
    shape, dtype = static_shape(spec), ARRAY_TYPES[spec.dtype]
    return aligned(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
