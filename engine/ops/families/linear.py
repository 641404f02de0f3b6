"""Matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.families.shape import check_shape
from braid.engine.ops.kinds import operator


@operator("aten.linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@operator("braid.linear_add")
def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, summand: Tensor) -> Tensor:
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


Ints = Sequence[int]


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """Moves of a kernel over the spatial axes; an empty list: the usual value of each axis.

    ``padding`` is the amount at both ends of each axis, ``output_padding`` the surplus of a
    transposed convolution.
    """

    stride: Ints = ()
    padding: Ints = ()
    dilation: Ints = ()
    transposed: bool = False
    output_padding: Ints = ()
    groups: int = 1


@operator("aten.convolution", window=ConvolutionWindow)
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, window: ConvolutionWindow
) -> Tensor:
    """x [n, c, *spatial]; weight [out, c / groups, *kernel], transposed [c, out / groups, ...]."""
    ones, zeros = [1] * (x.dim() - 2), [0] * (x.dim() - 2)
    results = weight.shape[1] * window.groups if window.transposed else weight.shape[0]
    check_shape("bias", bias, (results,))
    return torch.convolution(
        x,
        weight,
        bias,
        list(window.stride) or ones,
        list(window.padding) or zeros,
        list(window.dilation) or ones,
        window.transposed,
        list(window.output_padding) or zeros,
        window.groups,
    )


MOST_PADDED = 1 << 14  # positions of padding made in memory; beyond, only what is reached


def is_far(pads: Sequence[tuple[int, int]]) -> bool:
    """Whether padding, before and after each axis, is too much to be made in memory."""
    return math.prod(max(1, before + after) for before, after in pads) > MOST_PADDED


@operator("braid.convolution_far", window=ConvolutionWindow)
def convolution_far(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    before: Ints,
    after: Ints,
    window: ConvolutionWindow,
) -> Tensor:
    """Convolution whose padding lies far beyond x, in memory for its results times its kernel.

    Copies what windows that reach x read of it. The others hold the bias alone.
    """
    surplus: list[int] = []  # windows before and after those that reach x, the last axis first
    strides, dilations = list(window.stride), list(window.dilation)
    for axis in range(x.dim() - 1, 1, -1):
        place = axis - 2
        taps, step, spread = weight.shape[axis], strides[place], dilations[place]
        extent, reach = x.shape[axis], (weight.shape[axis] - 1) * spread
        count = (extent + before[place] + after[place] - reach - 1) // step + 1
        if count < 1:
            raise ValueError(f"a window of {reach + 1} does not fit into {extent}")
        first = min(count - 1, max(0, -((reach - before[place]) // step)))
        last = max(first, min(count - 1, (extent - 1 + before[place]) // step))
        starts = torch.arange(first, last + 1, device=x.device) * step - before[place]
        places = (starts[:, None] + torch.arange(taps, device=x.device) * spread).flatten()
        outside = (places < 0) | (places >= extent)
        shape = [-1 if other == axis else 1 for other in range(x.dim())]
        x = x.index_select(axis, places.clamp(0, extent - 1)).masked_fill(outside.view(shape), 0)
        surplus += [first, count - 1 - last]
    apart = replace(window, stride=weight.shape[2:], padding=(), dilation=())
    y = F.pad(convolution(x, weight, window=apart), surplus)
    return y if bias is None else y + bias.reshape(-1, *[1] * (x.dim() - 2))


@operator("braid.convolution_add", window=ConvolutionWindow)
def convolution_add(
    x: Tensor, weight: Tensor, bias: Tensor | None, summand: Tensor, window: ConvolutionWindow
) -> Tensor:
    return convolution(x, weight, bias, window=window) + summand


def halves(total: int, upper: bool) -> tuple[int, int]:
    """Padding of one axis before and after the data; ``upper`` puts the odd one after."""
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def same_padding(
    extents: Ints, kernel: Ints, stride: Ints, dilation: Ints, upper: bool
) -> list[tuple[int, int]]:
    """(before, after) of each axis for an output of ceil(extent / stride) positions."""
    pairs = []
    for extent, k, s, d in zip(extents, kernel, stride, dilation, strict=True):
        total = max(0, (-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent)
        pairs.append(halves(total, upper))
    return pairs


@operator("braid.pad_same")
def pad_same(
    x: Tensor, kernel: Ints, stride: Ints, dilation: Ints, upper: bool, value: float = 0.0
) -> Tensor:
    """Pad the spatial axes as ``auto_pad`` SAME_UPPER or SAME_LOWER asks for this input's shape."""
    pairs = same_padding(x.shape[2:], kernel, stride, dilation, upper)
    flat = [amount for pair in reversed(pairs) for amount in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


@operator("braid.conv_transpose_to", window=ConvolutionWindow)
def conv_transpose_to(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    output_shape: Ints | None,
    upper: bool,
    window: ConvolutionWindow,
) -> Tensor:
    """Cropped evenly, or grown at the end, to ``output_shape``, by default input times stride."""
    full = convolution(x, weight, window=replace(window, transposed=True))
    if output_shape is None:
        strides = list(window.stride) or [1] * (x.dim() - 2)
        same = [extent * step for extent, step in zip(x.shape[2:], strides, strict=True)]
        output_shape = [min(pair) for pair in zip(same, full.shape[2:], strict=True)]
    flat: list[int] = []
    for extent, wanted in reversed(list(zip(full.shape[2:], output_shape, strict=True))):
        before, after = halves(max(0, extent - wanted), upper)
        flat += [-before, -after + max(0, wanted - extent)]
    y = F.pad(full, flat)
    return y if bias is None else y + bias.reshape(-1, *[1] * (x.dim() - 2))
