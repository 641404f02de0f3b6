"""Matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.kinds import operator


@operator("aten.linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of x [..., in] and the transposed weight [out, in], plus bias [out]."""
    return F.linear(x, weight, bias)


@operator("braid.linear_add")
def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, summand: Tensor) -> Tensor:
    """``aten.linear`` plus a tensor of the same shape: a residual sum."""
    return F.linear(x, weight, bias) + summand


@operator("aten.matmul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@operator("aten.einsum")
def einsum(*tensors: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *tensors)


@operator("aten.det")
def det(x: Tensor) -> Tensor:
    y: Tensor = torch.linalg.det(x)
    return y
