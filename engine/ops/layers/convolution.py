"""Convolutions of any rank and the paddings that ONNX puts in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.kinds import operator

Ints = Sequence[int]


@operator("aten.convolution")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool = False,
    output_padding: Ints = (),
    groups: int = 1,
) -> Tensor:
    """x [n, c, *spatial] by weight [out, c / groups, *kernel] ([c, out / groups, *] transposed).

    Empty stride, padding, dilation or output_padding mean the usual ones, whatever the rank.
    """
    ones, zeros = [1] * (x.dim() - 2), [0] * (x.dim() - 2)
    return torch.convolution(
        x,
        weight,
        bias,
        list(stride) or ones,
        list(padding) or zeros,
        list(dilation) or ones,
        transposed,
        list(output_padding) or zeros,
        groups,
    )


@operator("braid.convolution_add")
def convolution_add(
    x: Tensor, weight: Tensor, bias: Tensor | None, summand: Tensor, **attributes: Any
) -> Tensor:
    """``aten.convolution`` plus a tensor of the same shape: a residual sum."""
    return convolution(x, weight, bias, **attributes) + summand


def same_padding(
    extents: Ints, kernel: Ints, stride: Ints, dilation: Ints, upper: bool
) -> list[tuple[int, int]]:
    """(before, after) of each axis so that the output has ceil(extent / stride) positions.

    The odd one out goes after the data for ``upper`` (SAME_UPPER), before it otherwise.
    """
    pairs = []
    for extent, k, s, d in zip(extents, kernel, stride, dilation, strict=True):
        total = max(0, (-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent)
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if upper else (large, small))
    return pairs


@operator("braid.pad_same")
def pad_same(
    x: Tensor, kernel: Ints, stride: Ints, dilation: Ints, upper: bool, value: float = 0.0
) -> Tensor:
    """Pad the spatial axes as ``auto_pad`` SAME_UPPER or SAME_LOWER asks for this input's shape."""
    pairs = same_padding(x.shape[2:], kernel, stride, dilation, upper)
    flat = [amount for pair in reversed(pairs) for amount in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


@operator("braid.conv_transpose_to")
def conv_transpose_to(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    output_shape: Ints | None,
    stride: Ints,
    dilation: Ints,
    output_padding: Ints,
    groups: int,
    upper: bool,
) -> Tensor:
    """Transposed convolution of a given output shape.

    Cropped evenly, or grown at the end, to ``output_shape``; without one cropped to input times
    stride.
    """
    spatial = x.dim() - 2
    stride = list(stride) or [1] * spatial
    full = convolution(
        x,
        weight,
        None,
        stride=stride,
        padding=[0] * spatial,
        dilation=dilation,
        transposed=True,
        output_padding=output_padding,
        groups=groups,
    )
    if output_shape is None:
        same = [e * s for e, s in zip(x.shape[2:], stride, strict=True)]
        output_shape = [min(pair) for pair in zip(same, full.shape[2:], strict=True)]
    flat: list[int] = []
    for extent, wanted in reversed(list(zip(full.shape[2:], output_shape, strict=True))):
        surplus = max(0, extent - wanted)
        small, large = surplus // 2, surplus - surplus // 2
        before, after = (small, large) if upper else (large, small)
        flat += [-before, -after + max(0, wanted - extent)]
    y = F.pad(full, flat)
    return y if bias is None else y + bias.reshape(-1, *[1] * spatial)
