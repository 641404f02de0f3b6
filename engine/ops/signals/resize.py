"""Resizing by sampling: ONNX Resize and Upsample in all coordinate and interpolation modes.

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

from braid.engine.ops.kinds import operator

_TIE = 1e-6  # coordinates this close to the middle of two neighbours count as the middle


@dataclass(frozen=True, slots=True)
class _Sampling:
    """How output positions become input values."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


@operator("braid.resize")
def resize(
    x: Tensor,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    roi: Sequence[float] | None = None,
    policy: str = "stretch",
    cubic: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    extrapolation: float = 0.0,
) -> Tensor:
    """Resize the named axes to ``sizes`` or by ``scales``."""
    named = [axis % x.dim() for axis in (range(x.dim()) if axes is None else axes)]
    plan = _extents(x, named, scales, sizes, policy)
    starts, ends = _regions(roi, len(named))
    how = _Sampling(mode, coordinates, rounding, cubic, exclude_outside, antialias, extrapolation)
    moving = [
        (axis, size, scale, start, end)
        for axis, (size, scale), start, end in zip(named, plan, starts, ends, strict=True)
        if size != x.shape[axis] or scale != 1 or coordinates == "tf_crop_and_resize"
    ]
    if not moving:
        return x
    fast = _interpolated(x, how, {axis: (size, scale) for axis, size, scale, _, _ in moving})
    if fast is not None:
        return fast
    y = x if x.is_floating_point() else (x if mode == "nearest" else x.float())
    outside: Tensor | None = None
    for axis, size, scale, start, end in moving:
        y, beyond = _resize_axis(y, axis, size, scale, start, end, how)
        if coordinates == "tf_crop_and_resize":
            shaped = beyond.reshape([-1 if i == axis else 1 for i in range(x.dim())])
            outside = shaped if outside is None else outside | shaped
    if outside is not None:
        y = torch.where(outside, torch.full_like(y, extrapolation), y)
    if y.dtype != x.dtype:
        bounds = torch.iinfo(x.dtype)
        y = y.round().clamp(bounds.min, bounds.max).to(x.dtype)
    return y


def _extents(
    x: Tensor,
    named: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    policy: str,
) -> list[tuple[int, float]]:
    """Output extent and scale of each named axis."""
    extents = [x.shape[axis] for axis in named]
    if sizes:
        if len(sizes) != len(named):
            raise ValueError(f"{len(sizes)} sizes for {len(named)} axes")
        factors = [size / extent for size, extent in zip(sizes, extents, strict=True)]
        if policy == "stretch":
            return list(zip(sizes, factors, strict=True))
        scale = min(factors) if policy == "not_larger" else max(factors)
        return [(math.floor(extent * scale + 0.5), scale) for extent in extents]
    if not scales or len(scales) != len(named):
        raise ValueError(f"{len(scales or ())} scales for {len(named)} axes")
    return [
        (math.floor(_fp32(extent * scale)), scale)
        for extent, scale in zip(extents, scales, strict=True)
    ]


def _fp32(value: float) -> float:
    """Rounded to FP32, in which scales are given: 10 * 0.7 is 7, not 6.9999999."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _regions(roi: Sequence[float] | None, count: int) -> tuple[Sequence[float], Sequence[float]]:
    """Normalised start and end of the region of each axis."""
    if not roi:
        return [0.0] * count, [1.0] * count
    return roi[:count], roi[count:]


def _interpolated(x: Tensor, how: _Sampling, moving: dict[int, tuple[int, float]]) -> Tensor | None:
    """torch's interpolation, where it samples exactly as asked; None elsewhere."""
    spatial = x.dim() - 2
    if not 1 <= spatial <= 2 or min(moving) < 2 or how.antialias or not x.is_floating_point():
        return None
    size = [moving.get(axis, (x.shape[axis], 1.0))[0] for axis in range(2, x.dim())]
    true_scales = all(
        abs(scale * x.shape[axis] - extent) < 1e-4 for axis, (extent, scale) in moving.items()
    )
    whole = all(scale >= 1 and float(scale).is_integer() for _, scale in moving.values())
    if how.mode == "nearest" and whole and _repeats(how):
        return F.interpolate(x, size=size, mode="nearest")
    if how.mode == "linear" and true_scales:
        name = "linear" if spatial == 1 else "bilinear"
        if how.coordinates == "align_corners":
            return F.interpolate(x, size=size, mode=name, align_corners=True)
        if how.coordinates == "half_pixel" or (
            how.coordinates == "pytorch_half_pixel" and min(size) > 1
        ):
            return F.interpolate(x, size=size, mode=name, align_corners=False)
    return None


def _repeats(how: _Sampling) -> bool:
    """True if nearest sampling by a whole scale repeats each element."""
    if how.coordinates == "asymmetric":
        return how.rounding in ("floor", "simple")
    half = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    return how.coordinates in half and how.rounding.startswith("round_prefer")


def _coordinates(
    count: int,
    extent: int,
    scale: float,
    start: float,
    end: float,
    how: _Sampling,
    device: torch.device,
) -> Tensor:
    """Input coordinate of each output position.

    In FP32 like everyone else: ties of nearest neighbours fall where rounding puts them.
    """
    out = torch.arange(count, device=device, dtype=torch.float32)
    match how.coordinates:
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
            if count > 1:
                return start * (extent - 1) + out * ((end - start) * (extent - 1) / (count - 1))
            return 0.5 * (start + end) * (extent - 1) + out
    raise ValueError(f"unknown coordinate mode {how.coordinates!r}")


def _resize_axis(
    x: Tensor, axis: int, count: int, scale: float, start: float, end: float, how: _Sampling
) -> tuple[Tensor, Tensor]:
    """Resize one axis; also tells which output positions lie outside the input."""
    extent = x.shape[axis]
    at = _coordinates(count, extent, scale, start, end, how, x.device)
    outside = (at < 0) | (at > extent - 1)
    if how.mode == "nearest":
        return x.index_select(axis, _rounded(at, how.rounding, scale).clamp(0, extent - 1)), outside
    stretch = min(scale, 1.0) if how.antialias else 1.0
    reach = 1 if how.mode == "linear" else 2
    taps = math.ceil(reach / stretch)
    base = torch.floor(at)
    offsets = torch.arange(1 - taps, taps + 1, device=x.device, dtype=torch.float64)
    neighbours = base.unsqueeze(1) + offsets  # [count, taps]
    distance = (neighbours - at.unsqueeze(1)).abs() * stretch
    weights = _linear(distance) if how.mode == "linear" else _cubic(distance, how.cubic)
    inside = (neighbours >= 0) & (neighbours <= extent - 1)
    if how.exclude_outside:
        weights = torch.where(inside, weights, torch.zeros_like(weights))
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(1, keepdim=True)
    places = neighbours.clamp(0, extent - 1).long()
    matrix = torch.zeros((count, extent), dtype=torch.float64, device=x.device)
    matrix = matrix.scatter_add(1, places, weights).to(x.dtype)
    return torch.movedim(torch.matmul(x.movedim(axis, -1), matrix.T), -1, axis), outside


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


def _linear(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor, a: float) -> Tensor:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    zero = torch.zeros_like(distance)
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, zero))
