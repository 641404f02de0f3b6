"""Kinds that make tensors from shapes and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from braid.engine.ops.arrays.shape import Number, scalar
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.kinds import operator

Ints = Sequence[int]


@operator("braid.constant_of_shape")
def constant_of_shape(shape: Ints, value: float | int | bool, dtype: str) -> Tensor:
    """Return a tensor filled with one value, on torch's default device."""
    return torch.full(list(shape), value, dtype=torch_dtype(dtype))


@operator("braid.full_like")
def full_like(x: Tensor, value: float, dtype: str | None = None) -> Tensor:
    return torch.full_like(x, value, dtype=torch_dtype(dtype) if dtype else x.dtype)


@operator("braid.range")
def range_(like: Tensor, start: Number, limit: Number, delta: Number) -> Tensor:
    """start, start + delta, ... below ``limit``, in the type of ``like``."""
    first, end, step = scalar(start), scalar(limit), scalar(delta)
    if step == 0 or not all(map(math.isfinite, (first, end, step))):
        raise ValueError(f"a range from {first} to {end} in steps of {step}")
    count = max(0, math.ceil((end - first) / step))
    wide = torch.float64 if like.is_floating_point() else torch.int64
    steps: Tensor = torch.arange(count, dtype=wide, device=like.device) * step + first
    return steps.to(like.dtype)


@operator("braid.eye_like")
def eye_like(x: Tensor, k: int = 0, dtype: str | None = None) -> Tensor:
    kind = torch_dtype(dtype) if dtype else x.dtype
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[1], device=x.device)
    return (columns - rows == k).to(kind)
