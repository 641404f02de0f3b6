"""Integer-quantised kinds: exact integer results, computed in FP64 where torch lacks integers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.kinds import operator
from braid.engine.ops.layers.convolution import convolution

Ints = Sequence[int]


def _along(parameter: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point shaped to broadcast over x: one, one a slice, or one a block."""
    if block:
        wide = parameter.repeat_interleave(block, axis)
        return wide.narrow(axis, 0, x.shape[axis])
    if parameter.numel() == 1:
        return parameter.reshape(())
    axis = axis % x.dim()
    return parameter.reshape([-1 if i == axis else 1 for i in range(x.dim())])


@operator("braid.dequantise")
def dequantise(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block: int = 0,
    dtype: str | None = None,
) -> Tensor:
    """(x - zero point) * scale."""
    wide = x.to(torch.float32) if x.dtype != torch.int32 else x.to(torch.float64)
    if zero_point is not None:
        wide = wide - _along(zero_point.to(wide.dtype), x, axis, block)
    y = wide * _along(scale.to(wide.dtype), x, axis, block)
    return y.to(torch_dtype(dtype) if dtype else scale.dtype)


@operator("braid.quantise")
def quantise(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block: int = 0,
    dtype: str | None = None,
) -> Tensor:
    """round(x / scale) + zero point, rounding half to even, cut off at the ends of the type."""
    kind = zero_point.dtype if zero_point is not None else torch_dtype(dtype or "UINT8")
    y = torch.round(x.to(torch.float32) / _along(scale.to(torch.float32), x, axis, block))
    return _shifted(y.to(torch.float64), zero_point, kind, x, axis, block)


def _shifted(
    y: Tensor, zero_point: Tensor | None, kind: torch.dtype, x: Tensor, axis: int, block: int = 0
) -> Tensor:
    if zero_point is not None:
        y = y + _along(zero_point.to(y.dtype), x, axis, block)
    bounds = torch.iinfo(kind)
    return torch.clamp(y, bounds.min, bounds.max).to(kind)


def _centred(x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """x - zero point, exact in FP64."""
    wide = x.to(torch.float64)
    return wide if zero_point is None else wide - _along(zero_point.to(wide.dtype), x, axis, 0)


@operator("braid.matmul_integer")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """(a - its zero point) by (b - its zero point), INT32."""
    return torch.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1)).to(torch.int32)


@operator("braid.quantised_matmul")
def quantised_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """Product of quantised matrices, quantised again; parameters of a by row, of b by column."""
    product = torch.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
    product = product * _along(a_scale.double(), a, -2, 0) * _along(b_scale.double(), b, -1, 0)
    y = torch.round(product / _along(y_scale.double(), product, -2, 0))
    return _shifted(y, y_zero, y_zero.dtype, product, -2)


@operator("braid.convolution_integer")
def convolution_integer(
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    """Convolution of centred integers, INT32; padding stands for the zero point."""
    y = convolution(
        _centred(x, x_zero, 1),
        _centred(weight, w_zero, 0),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    return y.to(torch.int32)


@operator("braid.quantised_convolution")
def quantised_convolution(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    """Quantised convolution, quantised again; weight parameters are one, or one a channel."""
    y = convolution(
        _centred(x, x_zero, 1),
        _centred(weight, w_zero, 0),
        None if bias is None else bias.double(),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    factor = x_scale.double() * w_scale.double() / y_scale.double()
    return _shifted(torch.round(y * _along(factor, y, 1, 0)), y_zero, y_zero.dtype, y, 1)
