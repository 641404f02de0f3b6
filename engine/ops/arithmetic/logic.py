"""Comparisons, boolean arithmetic and selection."""

from __future__ import annotations

import torch
from torch import Tensor

from braid.engine.ops.arithmetic.unsigned import with_unsigned
from braid.engine.ops.kinds import operator

_SAME_AS_TORCH = (
    *("eq", "ne", "lt", "le", "gt", "ge", "isnan"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
)
for _name in _SAME_AS_TORCH:
    operator(f"aten.{_name}")(with_unsigned(_name, getattr(torch, _name)))
operator("aten.where")(torch.where)


@operator("braid.isinf")
def isinf(x: Tensor, negative: bool = True, positive: bool = True) -> Tensor:
    if negative and positive:
        return torch.isinf(x)
    if positive:
        return torch.isposinf(x)
    if negative:
        return torch.isneginf(x)
    return torch.zeros_like(x, dtype=torch.bool)
