"""Pooling over any number of spatial axes, with ONNX's paddings and rounding.

``pads`` is either all begins then all ends, or the word ``same_upper`` or ``same_lower``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.kinds import operator
from braid.engine.ops.layers.convolution import same_padding

Ints = Sequence[int]

_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL = {2: F.avg_pool2d, 3: F.avg_pool3d}


def _pairs(
    x: Tensor, kernel: Ints, stride: Ints, dilation: Ints, pads: Ints | str
) -> list[tuple[int, int]]:
    """Padding before and after each spatial axis."""
    if isinstance(pads, str):
        return same_padding(x.shape[2:], kernel, stride, dilation, pads == "same_upper")
    return list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))


def _grown(
    x: Tensor, kernel: Ints, stride: Ints, dilation: Ints, pairs: list[tuple[int, int]], ceil: bool
) -> list[tuple[int, int]]:
    """Padding after the data grown so that rounding down gives what ``ceil`` asks for.

    A last window that would begin behind the data and its padding does not count.
    """
    if not ceil:
        return pairs
    grown = []
    for extent, k, s, d, (before, after) in zip(
        x.shape[2:], kernel, stride, dilation, pairs, strict=True
    ):
        span = (k - 1) * d + 1
        windows = -(-(extent + before + after - span) // s) + 1
        if (windows - 1) * s >= extent + before:
            windows -= 1
        grown.append((before, max(after, (windows - 1) * s + span - extent - before)))
    return grown


def _flat(pairs: list[tuple[int, int]]) -> list[int]:
    return [amount for pair in reversed(pairs) for amount in pair]


@operator("braid.max_pool")
def max_pool(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    pads: Ints | str,
    dilation: Ints,
    ceil_mode: bool = False,
) -> Tensor:
    """Largest element of each window."""
    pairs = _pairs(x, kernel, stride, dilation, pads)
    pairs = _grown(x, kernel, stride, dilation, pairs, ceil_mode)
    if not x.is_floating_point():
        wide = max_pool(x.double(), kernel, stride, _joined(pairs), dilation)
        return wide.to(x.dtype)
    pool = _MAX_POOL[len(kernel)]
    if all(b == a and 2 * b <= k for (b, a), k in zip(pairs, kernel, strict=True)):
        padding = [before for before, _ in pairs]
    else:
        x, padding = F.pad(x, _flat(pairs), value=float("-inf")), [0] * len(kernel)
    y: Tensor = pool(x, list(kernel), list(stride), padding, list(dilation))
    return y


def _joined(pairs: list[tuple[int, int]]) -> list[int]:
    return [before for before, _ in pairs] + [after for _, after in pairs]


@operator("braid.max_pool_with_indices")
def max_pool_with_indices(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    pads: Ints | str,
    dilation: Ints,
    ceil_mode: bool = False,
    column_major: bool = False,
) -> tuple[Tensor, Tensor]:
    """``max_pool`` and the position of each maximum in the flattened input."""
    pairs = _pairs(x, kernel, stride, dilation, pads)
    pairs = _grown(x, kernel, stride, dilation, pairs, ceil_mode)
    extents = list(x.shape[2:])
    wide = x if x.is_floating_point() else x.double()
    padded = F.pad(wide, _flat(pairs), value=float("-inf"))
    y, places = _MAX_POOL[len(kernel)](
        padded, list(kernel), list(stride), 0, list(dilation), return_indices=True
    )
    coordinates = []
    for extent, (before, _) in zip(reversed(padded.shape[2:]), reversed(pairs), strict=True):
        coordinates.append(places % extent - before)  # last axis first
        places = places // extent
    order = list(zip(coordinates, reversed(extents), strict=True))
    flat, scale = torch.zeros_like(places), 1
    for coordinate, extent in order[::-1] if column_major else order:
        flat, scale = flat + coordinate * scale, scale * extent
    images = torch.arange(x.shape[0] * x.shape[1], device=x.device)
    flat = flat + images.reshape(x.shape[0], x.shape[1], *[1] * len(kernel)) * scale
    return y.to(x.dtype), flat


@operator("braid.avg_pool")
def avg_pool(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    pads: Ints | str,
    dilation: Ints,
    ceil_mode: bool = False,
    count_padding: bool = False,
) -> Tensor:
    """Average of each window; ``count_padding`` counts the padding as zeros."""
    pairs = _pairs(x, kernel, stride, dilation, pads)
    grown = _grown(x, kernel, stride, dilation, pairs, ceil_mode)
    plain = grown == pairs and all(d == 1 for d in dilation) and len(kernel) in _AVG_POOL
    if plain and all(b == a and 2 * b <= k for (b, a), k in zip(pairs, kernel, strict=True)):
        y: Tensor = _AVG_POOL[len(kernel)](
            x,
            list(kernel),
            list(stride),
            [before for before, _ in pairs],
            count_include_pad=count_padding,
        )
        return y
    counted = F.pad(torch.ones_like(x[:1, :1]), _flat(pairs), value=float(count_padding))
    surplus = [(0, g[1] - p[1]) for g, p in zip(grown, pairs, strict=True)]
    sums = _window_sums(F.pad(x, _flat(grown)), kernel, stride, dilation)
    counts = _window_sums(F.pad(counted, _flat(surplus)), kernel, stride, dilation)
    return sums / counts


def _window_sums(x: Tensor, kernel: Ints, stride: Ints, dilation: Ints) -> Tensor:
    """Sum of each window, one axis at a time."""
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        span = (k - 1) * d + 1
        windows = x.unfold(axis, span, s)
        x = (windows[..., ::d] if d > 1 else windows).sum(-1)
    return x


@operator("braid.lp_pool")
def lp_pool(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    pads: Ints | str,
    dilation: Ints,
    p: int = 2,
    ceil_mode: bool = False,
) -> Tensor:
    """p-norm of each window; padding counts as zeros."""
    pairs = _pairs(x, kernel, stride, dilation, pads)
    pairs = _grown(x, kernel, stride, dilation, pairs, ceil_mode)
    powers = F.pad(x.abs().pow(p), _flat(pairs))
    return _window_sums(powers, kernel, stride, dilation).pow(1.0 / p)


@operator("braid.global_avg_pool")
def global_avg_pool(x: Tensor) -> Tensor:
    """Average over all spatial axes, which stay with extent 1."""
    return x.mean(list(range(2, x.dim())), keepdim=True)


@operator("braid.global_max_pool")
def global_max_pool(x: Tensor) -> Tensor:
    """Maximum over all spatial axes, which stay with extent 1."""
    return x.amax(list(range(2, x.dim())), keepdim=True)


_ADAPTIVE: dict[str, tuple[Callable[..., Tensor], ...]] = {
    "avg": (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    "max": (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
}


@operator("aten.adaptive_avg_pool")
def adaptive_avg_pool(x: Tensor, size: Ints) -> Tensor:
    """Average over ``size`` windows that cover each spatial axis."""
    return _ADAPTIVE["avg"][len(size) - 1](x, list(size))


@operator("aten.adaptive_max_pool")
def adaptive_max_pool(x: Tensor, size: Ints) -> Tensor:
    """Maximum over ``size`` windows that cover each spatial axis."""
    return _ADAPTIVE["max"][len(size) - 1](x, list(size))


@operator("braid.global_lp_pool")
def global_lp_pool(x: Tensor, p: int = 2) -> Tensor:
    """p-norm over all spatial axes, which stay with extent 1."""
    y: Tensor = torch.linalg.vector_norm(x, p, list(range(2, x.dim())), keepdim=True)
    return y
