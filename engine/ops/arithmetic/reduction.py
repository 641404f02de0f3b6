"""Reductions, running sums and softmax-like kinds.

``dims`` empty or None means all axes, unless ``noop`` says that empty means none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from braid.engine.ops.arrays.shape import scalar
from braid.engine.ops.kinds import operator

Dims = Sequence[int] | None
Fold = Callable[[Tensor, list[int], bool], Tensor]


def _reduction(kind: str) -> Callable[[Fold], Fold]:
    """Enter a reduction over a non-empty list of axes as ``kind``."""

    def enter(fold: Fold) -> Fold:
        def run(x: Tensor, dims: Dims = None, keepdim: bool = False, noop: bool = False) -> Tensor:
            if not dims:
                dims = [] if noop and dims is not None else range(x.dim())
            if not dims and x.dim():
                return _of_single_elements(kind, x, fold)
            return fold(x, list(dims), keepdim).to(x.dtype)

        operator(kind)(run)
        return fold

    return enter


def _of_single_elements(kind: str, x: Tensor, fold: Fold) -> Tensor:
    """Reduce over no axis: each element is a set of its own (log, square and abs still apply)."""
    return fold(x.unsqueeze(-1), [-1], False).to(x.dtype)


def _has_empty_axis(x: Tensor, dims: list[int]) -> bool:
    return any(x.shape[dim] == 0 for dim in dims if x.dim())


def _extreme(x: Tensor, dims: list[int], keepdim: bool, largest: bool) -> Tensor:
    if x.dtype == torch.bool:
        return x.any(dims, keepdim) if largest else x.all(dims, keepdim)
    if _has_empty_axis(x, dims):
        if x.is_floating_point():
            worst = float("-inf") if largest else float("inf")
        else:
            worst = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
        return torch.full_like(x.sum(dims, keepdim, dtype=x.dtype), worst)
    return torch.amax(x, dims, keepdim) if largest else torch.amin(x, dims, keepdim)


@_reduction("aten.mean")
def mean(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Average; of integers, cut off towards zero."""
    if x.is_floating_point():
        return torch.mean(x, dims, keepdim)
    return torch.mean(x, dims, keepdim, dtype=torch.float64).trunc()


@_reduction("aten.sum")
def total(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Sum."""
    return torch.sum(x, dims, keepdim)


@_reduction("aten.amax")
def largest(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Largest element; of nothing, the smallest value of the type."""
    return _extreme(x, dims, keepdim, largest=True)


@_reduction("aten.amin")
def smallest(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Smallest element; of nothing, the largest value of the type."""
    return _extreme(x, dims, keepdim, largest=False)


@_reduction("braid.prod")
def product(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Product."""
    for dim in sorted((d % max(x.dim(), 1) for d in dims), reverse=True):
        x = torch.prod(x, dim, keepdim) if x.dim() else x
    return x


@_reduction("braid.sum_square")
def sum_square(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Sum of squares."""
    return torch.sum(x * x, dims, keepdim)


@_reduction("braid.l1_norm")
def l1_norm(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Sum of absolute values."""
    return torch.sum(x.abs(), dims, keepdim)


@_reduction("braid.l2_norm")
def l2_norm(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Root of the sum of squares."""
    wide = x if x.is_floating_point() else x.double()
    return torch.sqrt(torch.sum(wide * wide, dims, keepdim))


@_reduction("braid.log_sum")
def log_sum(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Log of the sum."""
    wide = x if x.is_floating_point() else x.double()
    return torch.log(torch.sum(wide, dims, keepdim))


@_reduction("aten.logsumexp")
def log_sum_exp(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Log of the sum of exponentials, without overflow."""
    return torch.logsumexp(x if x.is_floating_point() else x.double(), dims, keepdim)


def _enter_arg_extreme(kind: str, find: Callable[..., Tensor]) -> None:
    """Enter the position of an extreme element: the first one, or the last."""

    @operator(kind)
    def arg_extreme(
        x: Tensor, dim: int = 0, keepdim: bool = True, select_last: bool = False
    ) -> Tensor:
        if not select_last:
            return find(x, dim, keepdim)
        return x.shape[dim] - 1 - find(x.flip(dim), dim, keepdim)


_enter_arg_extreme("braid.argmax", torch.argmax)
_enter_arg_extreme("braid.argmin", torch.argmin)


def _enter_running(kind: str, fold: Callable[..., Tensor], neutral: int) -> None:
    """Enter a running fold along an axis.

    With ``exclusive``, an element's own value is left out; with ``reverse``, the fold starts at
    the end.
    """

    @operator(kind)
    def running(
        x: Tensor, dim: int | list[int], exclusive: bool = False, reverse: bool = False
    ) -> Tensor:
        dim = int(scalar(dim))
        y = fold(x.flip(dim) if reverse else x, dim, dtype=x.dtype)
        if exclusive:
            first = torch.full_like(y.narrow(dim, 0, min(1, y.shape[dim])), neutral)
            y = torch.cat([first, y.narrow(dim, 0, max(0, y.shape[dim] - 1))], dim)
        return y.flip(dim) if reverse else y


_enter_running("braid.cumsum", torch.cumsum, 0)
_enter_running("braid.cumprod", torch.cumprod, 1)


@operator("aten.softmax")
def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) / sum(exp(x)) along ``dim``."""
    return torch.softmax(x, dim)


@operator("aten.log_softmax")
def log_softmax(x: Tensor, dim: int) -> Tensor:
    """Log of softmax."""
    return torch.log_softmax(x, dim)


@operator("braid.from_axis")
def from_axis(x: Tensor, axis: int, function: str) -> Tensor:
    """softmax, log_softmax or hardmax over all axes from ``axis`` on together."""
    axis = axis % x.dim() if x.dim() else 0
    run = {"softmax": softmax, "log_softmax": log_softmax, "hardmax": hardmax}[function]
    if axis == x.dim() - 1:
        return run(x, -1)
    return run(x.flatten(axis), -1).reshape(x.shape)


@operator("braid.hardmax")
def hardmax(x: Tensor, dim: int) -> Tensor:
    """1 at the first largest element along ``dim``, else 0."""
    places = torch.arange(x.shape[dim], device=x.device)
    places = places.reshape([-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())])
    return (places == torch.argmax(x, dim, keepdim=True)).to(x.dtype)


@operator("braid.lp_normalise")
def lp_normalise(x: Tensor, dim: int, p: int) -> Tensor:
    """x divided by its p-norm along ``dim``; 0 where that norm is 0."""
    norm = torch.linalg.vector_norm(x, p, dim, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)
