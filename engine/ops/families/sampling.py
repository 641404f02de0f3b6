"""Sampling at computed positions: grids, deformable kernels, sliding patches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.families.shape import check_shape, normal_axis
from braid.engine.ops.kinds import operator
from braid.engine.ops.value_ranges import MOST, Shape, ValueRange

Ints = Sequence[int]


@operator("aten.grid_sample")
def grid_sample(x: Tensor, grid: Tensor, mode: str, padding: str, align_corners: bool) -> Tensor:
    """Sample x [n, c, *spatial] at positions ``grid`` [n, *out, axes], -1 to 1 over each axis."""
    return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align_corners)


@operator("aten.affine_grid")
def affine_grid(theta: Tensor, size: Ints, align_corners: bool) -> Tensor:
    """``theta`` [n, axes, axes + 1]; ``size`` [n, c, *spatial] of the images that will be sampled.

    With ``align_corners`` -1 and 1 are the centres of the outer elements, not their edges.
    """
    return F.affine_grid(theta, list(size), align_corners)


@dataclass(frozen=True, slots=True)
class DeformableWindow:
    """Moves of a kernel over rows and columns before its positions are shifted."""

    stride: Ints
    pads: Ints  # begins, then ends
    dilation: Ints
    groups: int
    offset_groups: int  # groups of channels with offsets of their own

    def positions(self, weight: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column that each tap of the kernel reads, [n, offset groups, taps, oh, ow]."""
        kernel, out = weight.shape[2:], offset.shape[2:]
        moved = offset.reshape(offset.shape[0], self.offset_groups, -1, 2, *out)
        by_axis = []
        for axis in (0, 1):
            starts = torch.arange(out[axis], device=offset.device, dtype=offset.dtype)
            taps = torch.arange(kernel[axis], device=offset.device, dtype=offset.dtype)
            starts = starts * self.stride[axis] - self.pads[axis]
            taps = taps * self.dilation[axis]
            base = taps.reshape(-1, *[1] * (3 - axis)) + starts.reshape(-1, *[1] * (1 - axis))
            by_axis.append(base.expand(*kernel, *out).reshape(-1, *out) + moved[:, :, :, axis])
        return by_axis[0], by_axis[1]


@operator("braid.deformable_convolution", window=DeformableWindow)
def deformable_convolution(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    window: DeformableWindow,
) -> Tensor:
    """Two-dimensional convolution whose kernel positions are moved by ``offset``.

    x [n, c, h, w]; weight [out, c / groups, kh, kw]; bias [out]; offset [n, offset_groups * kh * kw
    * 2, oh, ow], rows before columns; mask [n, offset_groups * kh * kw, oh, ow], factor of each
    sample.
    """
    n, c, h, w = x.shape
    groups, taps, (oh, ow) = window.offset_groups, weight[0, 0].numel(), offset.shape[2:]
    rows, columns = window.positions(weight, offset)
    # A border of zeros around the image, so that samples fade out over one pixel.
    grid = torch.stack([(2 * columns + 1) / w - 1, (2 * rows + 1) / h - 1], -1)
    grid = grid.reshape(n * groups, taps * oh, ow, 2)
    images = x.reshape(n * groups, c // groups, h, w)
    samples = F.grid_sample(images, grid, mode="bilinear", align_corners=False)
    samples = samples.reshape(n, groups, c // groups, taps, oh, ow)
    if mask is not None:
        samples = samples * mask.reshape(n, groups, 1, taps, oh, ow)
    patches = samples.reshape(n, window.groups, c // window.groups * taps, oh * ow)
    kernels = weight.reshape(window.groups, weight.shape[0] // window.groups, -1)
    y = torch.matmul(kernels, patches).reshape(n, weight.shape[0], oh, ow)
    return y if bias is None else y + bias.reshape(-1, 1, 1)


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


def _pooled_shape(pooled: Shape, kernel: Ints, stride: Ints, pads: Ints) -> list[int]:
    """Shape that was pooled, from that of the result."""
    both = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
    extents = [
        (extent - 1) * s + k - before - after
        for extent, k, s, (before, after) in zip(pooled[2:], kernel, stride, both, strict=True)
    ]
    return [*pooled[:2], *extents]


def _flat_positions(
    shapes: Sequence[Shape | None], attributes: Mapping[str, Any]
) -> Iterable[ValueRange]:
    assert shapes[0] is not None
    window = (attributes[name] for name in ("kernel", "stride", "pads"))
    yield ValueRange(1, "index", 0, math.prod(_pooled_shape(shapes[0], *window)) - 1)


@operator("braid.max_unpool", values=_flat_positions)
def max_unpool(
    x: Tensor,
    places: Tensor,
    *,
    kernel: Ints,
    stride: Ints,
    pads: Ints,
    output_shape: Ints | None = None,
) -> Tensor:
    """Tensor of zeros of the shape that was pooled, with each value at its flat position."""
    check_shape("indices", places, x.shape)
    shape = _pooled_shape(x.shape, kernel, stride, pads)
    if output_shape is None:
        return _placed(x, places, shape, shape)
    wanted = list(output_shape)
    if len(wanted) != len(shape) or any(w < s for w, s in zip(wanted, shape, strict=False)):
        raise ValueError(f"output shape {wanted} is smaller than {shape}, which was pooled")
    return _placed(x, places, shape, wanted)


def _placed(x: Tensor, places: Tensor, pooled: Ints, shape: Ints) -> Tensor:
    """Positions count in ``pooled``; the result has ``shape``, which may be larger."""
    places = places.reshape(-1)
    if list(shape) != list(pooled):
        coordinates = []
        for extent in reversed(pooled):
            coordinates.append(places % extent)
            places = places // extent
        places = coordinates.pop()
        for extent in shape[1:]:
            places = places * extent + coordinates.pop()
    flat = torch.zeros(list(shape), dtype=x.dtype, device=x.device).reshape(-1)
    return flat.scatter(0, places, x.reshape(-1)).reshape(list(shape))


def _starts(shapes: Sequence[Shape | None], attributes: Mapping[str, Any]) -> Iterable[ValueRange]:
    cache, update = shapes[:2]
    assert cache is not None
    assert update is not None
    axis = attributes.get("axis", -2)
    last = MOST if attributes.get("circular") else cache[axis] - update[axis]
    if len(shapes) > 2:
        yield ValueRange(2, "position", 0, last)


@operator("braid.cache_update", values=_starts)
def cache_update(
    cache: Tensor,
    update: Tensor,
    starts: Tensor | None = None,
    *,
    axis: int = -2,
    circular: bool = False,
) -> Tensor:
    """Return a cache with ``update`` written along ``axis`` from each row's start on."""
    axis = normal_axis(axis, cache.dim())
    check_shape("write indices", starts, cache.shape[:1])
    steps = torch.arange(update.shape[axis], device=cache.device)
    first = 0 if starts is None else starts.reshape(-1, 1).to(cache.device)
    places = (first + steps).expand(cache.shape[0], -1)
    if circular:
        places = places % cache.shape[axis]
    view = [cache.shape[0]] + [1] * (cache.dim() - 1)
    view[axis] = update.shape[axis]
    return cache.scatter(axis, places.reshape(view).expand(update.shape), update)
