"""Pooling over any number of spatial axes, with ONNX's paddings and rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.families.linear import same_padding
from braid.engine.ops.kinds import operator

Ints = Sequence[int]
Pairs = list[tuple[int, int]]  # padding before and after each spatial axis

_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL = {2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True, slots=True)
class PoolingWindow:
    """Windows that slide over the spatial axes; each list has one entry an axis."""

    kernel: Ints
    stride: Ints
    pads: Ints | str  # all begins then all ends, or "same_upper" or "same_lower"
    dilation: Ints
    ceil_mode: bool = False  # a last window may reach beyond the data

    def counts_of(self, extents: Sequence[int]) -> list[int]:
        """Windows along each spatial axis; ``ValueError`` if the data is smaller than a window."""
        return [axis.windows for axis in self._axes(torch.empty((1, 1, *extents), device="meta"))]

    def pairs(self, x: Tensor) -> Pairs:
        """Padding before and after each spatial axis of x."""
        if isinstance(self.pads, str):
            upper = self.pads == "same_upper"
            return same_padding(x.shape[2:], self.kernel, self.stride, self.dilation, upper)
        rank = len(self.kernel)
        return list(zip(self.pads[:rank], self.pads[rank:], strict=True))

    def grown(self, x: Tensor) -> Pairs:
        """Padding grown after the data so that rounding down gives what ``ceil_mode`` asks for.

        A last window that would begin behind the data and its padding does not count.
        """
        pairs = self.pairs(x)
        if not self.ceil_mode:
            return pairs
        grown = []
        for extent, k, s, d, (before, after) in zip(
            x.shape[2:], self.kernel, self.stride, self.dilation, pairs, strict=True
        ):
            span = (k - 1) * d + 1
            windows = -(-(extent + before + after - span) // s) + 1
            if (windows - 1) * s >= extent + before:
                windows -= 1
            grown.append((before, max(after, (windows - 1) * s + span - extent - before)))
        return grown

    def fits_torch(self, pairs: Pairs) -> bool:
        """True if torch's pooling takes this padding: even, at most half of the kernel."""
        return all(b == a and 2 * b <= k for (b, a), k in zip(pairs, self.kernel, strict=True))

    def clipped(self, x: Tensor) -> tuple[PoolingWindow, Pairs]:
        """These windows without what none of them has of x, and the padding that they need then.

        A kernel or padding far larger than the data takes no more memory than data and windows do.
        Padding before the data may be negative: what no window reaches is cut off.
        """
        kernel, pairs = [], []
        for axis in self._axes(x):
            last = (axis.windows - 1) * axis.stride - axis.before  # where the last window begins
            first = min(max(0, -(last // axis.dilation)), axis.kernel - 1)
            end = min(axis.kernel, -(-(axis.extent + axis.before) // axis.dilation))
            size = max(1, end - first)
            span = (size - 1) * axis.dilation + 1
            before = axis.before - first * axis.dilation
            kernel.append(size)
            pairs.append((before, last + first * axis.dilation + span - axis.extent))
        return replace(self, kernel=kernel, pads=[], ceil_mode=False), pairs

    def counts(self, x: Tensor, *, with_padding: bool) -> Tensor:
        """Elements of each window that count: those of x, and of the padding if asked."""
        counted = torch.ones([], dtype=x.dtype, device=x.device)
        for axis, (before, after) in zip(self._axes(x), self.pairs(x), strict=True):
            low, high = (-before, axis.extent + after) if with_padding else (0, axis.extent)
            starts = torch.arange(axis.windows, device=x.device) * axis.stride - before
            first = (low - starts + axis.dilation - 1).div(axis.dilation, rounding_mode="floor")
            last = (high - 1 - starts).div(axis.dilation, rounding_mode="floor")
            here = last.clamp(max=axis.kernel - 1) - first.clamp(min=0) + 1
            counted = counted[..., None] * here.clamp(min=0).to(x.dtype)
        return counted

    def _axes(self, x: Tensor) -> list[_Axis]:
        """Windows of each spatial axis; ``ValueError`` if x is smaller than one."""
        axes = []
        for extent, k, s, d, (before, after) in zip(
            x.shape[2:], self.kernel, self.stride, self.dilation, self.grown(x), strict=True
        ):
            windows = (extent + before + after - (k - 1) * d - 1) // s + 1
            if windows < 1:
                raise ValueError(f"a window of {(k - 1) * d + 1} does not fit into {extent}")
            axes.append(_Axis(extent, before, windows, k, s, d))
        return axes

    def sums(self, x: Tensor) -> Tensor:
        """Sum of each window of x and zeros around it, one axis at a time."""
        window, pairs = self.clipped(x)
        return window._sums(F.pad(x, _flat(pairs)))

    def _sums(self, x: Tensor) -> Tensor:
        for axis, (k, s, d) in enumerate(
            zip(self.kernel, self.stride, self.dilation, strict=True), start=2
        ):
            windows = x.unfold(axis, (k - 1) * d + 1, s)
            x = (windows[..., ::d] if d > 1 else windows).sum(-1)
        return x


@dataclass(frozen=True, slots=True)
class _Axis:
    """Windows along one axis of some data."""

    extent: int
    before: int  # padding
    windows: int
    kernel: int
    stride: int
    dilation: int


def _flat(pairs: Pairs) -> list[int]:
    """Padding as ``F.pad`` takes it, the last axis first."""
    return [amount for pair in reversed(pairs) for amount in pair]


@operator("braid.max_pool", window=PoolingWindow)
def max_pool(x: Tensor, window: PoolingWindow) -> Tensor:
    if not x.is_floating_point():
        return max_pool(x.double(), window).to(x.dtype)
    pairs = window.grown(x)
    if window.fits_torch(pairs):
        padding = [before for before, _ in pairs]
    else:
        window, pairs = window.clipped(x)
        x, padding = F.pad(x, _flat(pairs), value=float("-inf")), [0] * len(pairs)
    pool = _MAX_POOL[len(pairs)]
    y: Tensor = pool(x, list(window.kernel), list(window.stride), padding, list(window.dilation))
    return y


@operator("braid.avg_pool", window=PoolingWindow)
def avg_pool(x: Tensor, window: PoolingWindow, count_padding: bool = False) -> Tensor:
    """Average of each window; ``count_padding`` counts the padding as zeros."""
    pairs, grown = window.pairs(x), window.grown(x)
    rank = len(pairs)
    plain = grown == pairs and all(d == 1 for d in window.dilation) and rank in _AVG_POOL
    if plain and window.fits_torch(pairs):
        padding = [before for before, _ in pairs]
        y: Tensor = _AVG_POOL[rank](
            x, list(window.kernel), list(window.stride), padding, count_include_pad=count_padding
        )
        return y
    return window.sums(x) / window.counts(x, with_padding=count_padding)


@operator("braid.global_avg_pool")
def global_avg_pool(x: Tensor) -> Tensor:
    return x.mean(list(range(2, x.dim())), keepdim=True)


@operator("braid.global_max_pool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.amax(list(range(2, x.dim())), keepdim=True)
