"""Matrix products and convolutions, and sums of the patches that a convolution reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.families.shape import check_shape
from braid.engine.ops.kinds import operator

operator("aten.linear")(F.linear)
operator("aten.matmul")(torch.matmul)


@operator("braid.linear_add")
def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, summand: Tensor) -> Tensor:
    return F.linear(x, weight, bias) + summand


@operator("aten.einsum")
def einsum(*tensors: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *tensors)


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


MOST_PADDED = 1 << 14  # positions of padding that may be made in memory


def is_far(pads: Sequence[tuple[int, int]]) -> bool:
    """Whether padding, before and after each axis, is too much to be made in memory."""
    return math.prod(max(1, before + after) for before, after in pads) > MOST_PADDED


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


@operator("braid.col2im")
def col2im(x: Tensor, image: Ints, block: Ints, stride: Ints, pads: Ints, dilation: Ints) -> Tensor:
    """Sum patches [n, c * block, positions] into images [n, c, *image] of one or two axes."""
    if len(image) == 1:
        image, block, stride, dilation = ([1, v[0]] for v in (image, block, stride, dilation))
        wide = col2im(x, image, block, stride, [0, pads[0], 0, pads[1]], dilation)
        return wide.squeeze(2)
    top, before, bottom, after = pads
    size = (image[0] + top + bottom, image[1] + before + after)
    y = F.fold(x, size, tuple(block), tuple(dilation), 0, tuple(stride))
    return y[:, :, top : top + image[0], before : before + image[1]]
