"""Element types: Open Inference Protocol names, the same as in graph attributes, and torch's."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from braid.core.errors import InvalidArtefact
from braid.core.tensor import BYTES, TensorType

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "UINT16": torch.uint16,
    "INT16": torch.int16,
    "UINT32": torch.uint32,
    "INT32": torch.int32,
    "UINT64": torch.uint64,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    BYTES: torch.complex64,  # 8 bytes that name a string (strings.py, shared_memory.py)
}
DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of an OIP name.

    Raises:
        InvalidArtefact: no such type.
    """
    try:
        return TORCH_DTYPES[name]
    except KeyError:
        raise InvalidArtefact(f"unknown dtype {name!r}; known: {', '.join(TORCH_DTYPES)}") from None


def spec_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
