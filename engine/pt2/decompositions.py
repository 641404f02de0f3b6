"""Operators that torch.onnx lacks, in terms of those that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def _adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Largest element of each window; a model that reads its place fails its comparison."""
    first = x.dim() - len(output_size)
    for axis, count in enumerate(output_size, start=first):
        extent = x.shape[axis]
        ends = [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        windows = [x.narrow(axis, start, end - start).amax(axis) for start, end in ends]
        x = torch.stack(windows, axis)
    return x, torch.full_like(x, -1, dtype=torch.int64)


def _distances(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)
    return lengths


_aten = torch.ops.aten
DECOMPOSED: Mapping[Any, Callable[..., Any]] = {
    _aten.adaptive_max_pool1d.default: _adaptive_max_pool,
    _aten.adaptive_max_pool2d.default: _adaptive_max_pool,
    _aten.adaptive_max_pool3d.default: _adaptive_max_pool,
    _aten.cdist.default: _distances,
    _aten._cdist_forward.default: _distances,
}
