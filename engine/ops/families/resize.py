"""Resizing by sampling, as ONNX Resize and Upsample do, and sampling at given positions.

Each axis is resized on its own: the positions of the output are mapped to coordinates of the
input, which pick neighbours and weights. Where torch's interpolation means the same, it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.families.shape import different_axes
from braid.engine.ops.kinds import operator

_TIE = 1e-6  # coordinates this close to the middle of two neighbours count as the middle


@dataclass(frozen=True, slots=True)
class ResizeOptions:
    """Attributes of ``braid.resize``: the extents of the result and how it is sampled."""

    mode: str = "nearest"  # nearest, linear or cubic
    coordinates: str = "half_pixel"  # how positions of the output map to the input
    rounding: str = "round_prefer_floor"  # of coordinates, for nearest
    scales: Sequence[float] | None = None  # one for each of the axes; this or sizes
    sizes: Sequence[int] | None = None
    axes: Sequence[int] | None = None  # None: all
    roi: Sequence[float] | None = None  # starts, then ends, 0 to 1 over each axis
    policy: str = "stretch"  # or not_larger, not_smaller: one scale for all axes
    cubic: float = -0.75  # coefficient of the cubic weights
    exclude_outside: bool = False  # neighbours outside the input have no weight
    antialias: bool = False
    extrapolation: float = 0.0  # value outside the region, with tf_crop_and_resize
    least: float = 0.0  # scale that is allowed; Upsample takes none below 1

    @property
    def crops(self) -> bool:
        return self.coordinates == "tf_crop_and_resize"

    def resized(self, x: Tensor) -> list[_Axis]:
        named = different_axes(range(x.dim()) if self.axes is None else self.axes, x.dim())
        roi = self.roi or [0.0] * len(named) + [1.0] * len(named)
        if not all(map(math.isfinite, roi)):
            raise ValueError(f"a region of {list(roi)}")
        regions = zip(roi[: len(named)], roi[len(named) :], strict=True)
        extents = self._extents([x.shape[axis] for axis in named])
        axes = [
            _Axis(axis, x.shape[axis], size, scale, *region)
            for axis, (size, scale), region in zip(named, extents, regions, strict=True)
        ]
        return [a for a in axes if a.size != a.extent or a.scale != 1 or self.crops]

    def _extents(self, extents: Sequence[int]) -> list[tuple[int, float]]:
        """Output extent and scale of each named axis; ``ValueError`` for wrong ones."""
        if self.sizes and self.scales:
            raise ValueError("scales and sizes, of which one is wanted")
        for number in (*(self.sizes or ()), *(self.scales or ())):
            if not (self.least <= number < math.inf and number > 0):
                raise ValueError(f"a size or scale of {number}")
        if self.sizes:
            if len(self.sizes) != len(extents):
                raise ValueError(f"{len(self.sizes)} sizes for {len(extents)} axes")
            factors = [size / extent for size, extent in zip(self.sizes, extents, strict=True)]
            if self.policy == "stretch":
                return list(zip(self.sizes, factors, strict=True))
            scale = min(factors) if self.policy == "not_larger" else max(factors)
            return [(math.floor(extent * scale + 0.5), scale) for extent in extents]
        if not self.scales or len(self.scales) != len(extents):
            raise ValueError(f"{len(self.scales or ())} scales for {len(extents)} axes")
        return [
            (math.floor(_fp32(extent * scale)), scale)
            for extent, scale in zip(extents, self.scales, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis that is sampled anew: its index, extents, and region of the input."""

    axis: int
    extent: int  # of the input
    size: int  # of the output
    scale: float
    start: float  # region, 0 to 1
    end: float


@operator("braid.resize", options=ResizeOptions)
def resize(x: Tensor, options: ResizeOptions) -> Tensor:
    axes = options.resized(x)
    if not axes:
        return x
    fast = _interpolated(x, options, axes)
    if fast is not None:
        return fast
    y = x if x.is_floating_point() or options.mode == "nearest" else x.float()
    outside: Tensor | None = None
    for axis in axes:
        y, beyond = _resize_axis(y, axis, options)
        if options.crops:
            shaped = beyond.reshape([-1 if i == axis.axis else 1 for i in range(x.dim())])
            outside = shaped if outside is None else outside | shaped
    if outside is not None:
        y = torch.where(outside, torch.full_like(y, options.extrapolation), y)
    if y.dtype != x.dtype:
        bounds = torch.iinfo(x.dtype)
        y = y.round().clamp(bounds.min, bounds.max).to(x.dtype)
    return y


def _fp32(value: float) -> float:
    """Round to FP32, in which scales are given: 10 * 0.7 is 7, not 6.9999999."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _interpolated(x: Tensor, options: ResizeOptions, axes: Sequence[_Axis]) -> Tensor | None:
    """torch's interpolation, where it samples exactly as asked; None elsewhere."""
    sampling = usual_sampling(x, options)
    if sampling is None:
        return None
    sizes = {axis.axis: axis.size for axis in axes}
    size = [sizes.get(axis, x.shape[axis]) for axis in range(2, x.dim())]
    if sampling == "nearest":
        return F.interpolate(x, size=size, mode=sampling)
    name = "linear" if x.dim() == 3 else "bilinear"
    return F.interpolate(x, size=size, mode=name, align_corners=sampling == "corners")


def usual_sampling(x: Tensor, options: ResizeOptions) -> str | None:
    """Libraries' names: nearest, half (pixels, linear), corners; None: none. x may have no data."""
    axes = options.resized(x)
    spatial = x.dim() - 2
    first = min((axis.axis for axis in axes), default=0)
    if not 1 <= spatial <= 2 or first < 2 or options.antialias or not x.is_floating_point():
        return None
    sizes = {axis.axis: axis.size for axis in axes}
    least = min(sizes.get(axis, x.shape[axis]) for axis in range(2, x.dim()))
    true_scales = all(abs(a.scale * a.extent - a.size) < 1e-4 for a in axes)
    whole = all(a.scale >= 1 and float(a.scale).is_integer() for a in axes)
    if options.mode == "nearest" and whole and _repeats(options):
        return "nearest"
    if options.mode == "linear" and true_scales:
        if options.coordinates == "align_corners":
            return "corners"
        if options.coordinates == "half_pixel" or (
            options.coordinates == "pytorch_half_pixel" and least > 1
        ):
            return "half"
    return None


def _repeats(options: ResizeOptions) -> bool:
    """True if nearest sampling by a whole scale repeats each element."""
    if options.coordinates == "asymmetric":
        return options.rounding in ("floor", "simple")
    half = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    return options.coordinates in half and options.rounding.startswith("round_prefer")


def _coordinates(axis: _Axis, mode: str, device: torch.device) -> Tensor:
    """[size] numbers in FP32, as other implementations compute it.

    Ties of nearest neighbours fall where rounding puts them.
    """
    count, extent, scale = axis.size, axis.extent, axis.scale
    out = torch.arange(count, device=device, dtype=torch.float32)
    match mode:
        case "asymmetric":
            return out / scale
        case "half_pixel":
            return (out + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (out + 0.5) / scale - 0.5 if count > 1 else torch.zeros_like(out)
        case "half_pixel_symmetric":
            offset = extent / 2 * (1 - count / (scale * extent))
            return offset + (out + 0.5) / scale - 0.5
        case "align_corners":
            return out * (extent - 1) / (count - 1) if count > 1 else torch.zeros_like(out)
        case "tf_half_pixel_for_nn":
            return (out + 0.5) / scale
        case "tf_crop_and_resize":
            start, end = axis.start, axis.end
            if count > 1:
                return start * (extent - 1) + out * ((end - start) * (extent - 1) / (count - 1))
            return 0.5 * (start + end) * (extent - 1) + out
    raise ValueError(f"unknown coordinate mode {mode!r}")


def _resize_axis(x: Tensor, axis: _Axis, options: ResizeOptions) -> tuple[Tensor, Tensor]:
    """x with one axis resized, and which output positions lie outside the input, [size]."""
    at = _coordinates(axis, options.coordinates, x.device)
    last = axis.extent - 1
    outside = (at < 0) | (at > last)
    if options.mode == "nearest":
        places = _rounded(at, options.rounding, axis.scale).clamp(0, last)
        return x.index_select(axis.axis, places), outside
    stretch = min(axis.scale, 1.0) if options.antialias else 1.0
    taps = math.ceil((1 if options.mode == "linear" else 2) / stretch)
    offsets = torch.arange(1 - taps, taps + 1, device=x.device, dtype=torch.float64)
    neighbours = torch.floor(at).unsqueeze(1) + offsets  # [size, taps]
    distance = (neighbours - at.unsqueeze(1)).abs() * stretch
    if options.mode == "linear":
        weights = (1 - distance).clamp(min=0)
    else:
        weights = _cubic(distance, options.cubic)
    if options.exclude_outside:
        inside = (neighbours >= 0) & (neighbours <= last)
        weights = torch.where(inside, weights, torch.zeros_like(weights))
    if options.exclude_outside or options.antialias:
        weights = weights / weights.sum(1, keepdim=True)
    matrix = torch.zeros((axis.size, axis.extent), dtype=torch.float64, device=x.device)
    matrix = matrix.scatter_add(1, neighbours.clamp(0, last).long(), weights).to(x.dtype)
    y = torch.matmul(x.movedim(axis.axis, -1), matrix.T)
    return torch.movedim(y, -1, axis.axis), outside


def _rounded(at: Tensor, rounding: str, scale: float) -> Tensor:
    match rounding:
        case "simple":  # Resize of opset 10
            return (torch.ceil(at) if scale < 1 else torch.floor(at)).long()
        case "floor":
            return torch.floor(at).long()
        case "ceil":
            return torch.ceil(at).long()
        case "round_prefer_floor":
            return torch.ceil(at.double() - 0.5 - _TIE).long()
        case "round_prefer_ceil":
            return torch.floor(at.double() + 0.5 + _TIE).long()
    raise ValueError(f"unknown rounding {rounding!r}")


def _cubic(distance: Tensor, a: float) -> Tensor:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    zero = torch.zeros_like(distance)
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, zero))


@operator("aten.grid_sample")
def grid_sample(x: Tensor, grid: Tensor, mode: str, padding: str, align_corners: bool) -> Tensor:
    """Sample x [n, c, *spatial] at positions ``grid`` [n, *out, axes], -1 to 1 over each axis."""
    return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align_corners)
