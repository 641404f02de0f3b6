"""Integer-quantised kinds: exact integer results, computed in FP64 where torch lacks integers."""

import torch
from torch import Tensor

from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.families.linear import ConvolutionWindow, convolution
from braid.engine.ops.kinds import operator


def _along(parameter: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Shape a scale or zero point to broadcast over x: one, one a slice, or one a block."""
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
    """round(x / scale) + zero point, half to even; NaN gives the least, as in ONNX Runtime."""
    kind = zero_point.dtype if zero_point is not None else torch_dtype(dtype or "UINT8")
    y = torch.round(x.to(torch.float32) / _along(scale.to(torch.float32), x, axis, block))
    y = y.masked_fill(y.isnan(), -torch.inf)
    exact = torch.float32 if torch.iinfo(kind).bits <= 16 else torch.float64
    return _shifted(y.to(exact), zero_point, kind, x, axis, block)


def _shifted(
    y: Tensor, zero_point: Tensor | None, kind: torch.dtype, x: Tensor, axis: int, block: int = 0
) -> Tensor:
    if zero_point is not None:
        y = y + _along(zero_point.to(y.dtype), x, axis, block)
    bounds = torch.iinfo(kind)
    return torch.clamp(y, bounds.min, bounds.max).to(kind)


def _centred(x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    wide = x.to(torch.float64)
    return wide if zero_point is None else wide - _along(zero_point.to(wide.dtype), x, axis, 0)


@operator("braid.matmul_integer")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """Product of (a - its zero point) and (b - its zero point), INT32."""
    return torch.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1)).to(torch.int32)


@operator("braid.quantised_matmul")
def quantised_matmul(*operands: Tensor) -> Tensor:
    """a, its scales and zero points by row; b's by column; scale and zero point of the result."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
    product = torch.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
    product = product * _along(a_scale.double(), a, -2, 0)
    product = product * _along(b_scale.double(), b, -1, 0)
    y = torch.round(product / _along(y_scale.double(), product, -2, 0))
    return _shifted(y, y_zero, y_zero.dtype, product, -2)


@operator("braid.convolution_integer", window=ConvolutionWindow)
def convolution_integer(
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    window: ConvolutionWindow,
) -> Tensor:
    """Convolution of centred integers, INT32; padding stands for the zero point."""
    y = convolution(_centred(x, x_zero, 1), _centred(weight, w_zero, 0), window=window)
    return y.to(torch.int32)
