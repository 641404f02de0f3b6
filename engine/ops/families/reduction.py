"""Reductions, running sums and softmax-like kinds.

``dims`` empty or None means all axes, unless ``noop`` says that empty means none.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from braid.engine.ops.families.shape import normal_axis, scalar
from braid.engine.ops.kinds import operator

Dims = Sequence[int] | None
Fold = Callable[[Tensor, list[int], bool], Tensor]


def _enter_reduction(kind: str, fold: Fold) -> None:
    """Enter a reduction as ``kind``; ``fold`` reduces a non-empty list of axes."""

    @operator(kind)
    def run(x: Tensor, dims: Dims = None, keepdim: bool = False, noop: bool = False) -> Tensor:
        if not dims:
            dims = [] if noop and dims is not None else range(x.dim())
        if not dims and x.dim():
            # each element is a set of its own (log, square and abs still apply)
            return fold(x.unsqueeze(-1), [-1], False).to(x.dtype)
        return fold(x, list(dims), keepdim).to(x.dtype)


def _extreme(largest: bool, x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Largest or smallest element; of nothing, the smallest or largest value of the type."""
    if x.dtype == torch.bool:
        return x.any(dims, keepdim) if largest else x.all(dims, keepdim)
    if any(x.shape[dim] == 0 for dim in dims if x.dim()):
        if x.is_floating_point():
            worst = float("-inf") if largest else float("inf")
        else:
            worst = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
        return torch.full_like(x.sum(dims, keepdim, dtype=x.dtype), worst)
    return torch.amax(x, dims, keepdim) if largest else torch.amin(x, dims, keepdim)


def _mean(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Average; of integers, cut off towards zero."""
    if x.is_floating_point():
        return torch.mean(x, dims, keepdim)
    return torch.mean(x, dims, keepdim, dtype=torch.float64).trunc()


def _product(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    for dim in sorted((normal_axis(d, x.dim()) for d in dims), reverse=True):
        x = torch.prod(x, dim, keepdim) if x.dim() else x
    return x


def _wide(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.double()


_REDUCTIONS: dict[str, Fold] = {
    "aten.amax": partial(_extreme, True),
    "aten.amin": partial(_extreme, False),
    "aten.logsumexp": lambda x, dims, keepdim: torch.logsumexp(_wide(x), dims, keepdim),
    "aten.mean": _mean,
    "aten.sum": torch.sum,
    "braid.l1_norm": lambda x, dims, keepdim: torch.sum(x.abs(), dims, keepdim),
    "braid.l2_norm": lambda x, dims, keepdim: torch.sum(_wide(x) ** 2, dims, keepdim).sqrt(),
    "braid.log_sum": lambda x, dims, keepdim: torch.sum(_wide(x), dims, keepdim).log(),
    "braid.prod": _product,
    "braid.sum_square": lambda x, dims, keepdim: torch.sum(x * x, dims, keepdim),
}
for _kind, _fold in _REDUCTIONS.items():
    _enter_reduction(_kind, _fold)


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
    """``exclusive`` leaves an element's own value out; ``reverse`` starts at the end."""

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


operator("aten.softmax")(torch.softmax)
operator("aten.log_softmax")(torch.log_softmax)


@operator("braid.from_axis")
def from_axis(x: Tensor, axis: int, function: str) -> Tensor:
    """Apply softmax, log_softmax or hardmax over all axes from ``axis`` on together."""
    axis = normal_axis(axis, x.dim()) if x.dim() else 0
    functions: dict[str, Callable[[Tensor, int], Tensor]] = {
        "softmax": torch.softmax,
        "log_softmax": torch.log_softmax,
        "hardmax": hardmax,
    }
    run = functions[function]
    if axis == x.dim() - 1:
        return run(x, -1)
    return run(x.flatten(axis), -1).reshape(x.shape)


@operator("braid.hardmax")
def hardmax(x: Tensor, dim: int) -> Tensor:
    """One at the first largest element along ``dim``, zero elsewhere."""
    places = torch.arange(x.shape[dim], device=x.device)
    dim = normal_axis(dim, x.dim())
    places = places.reshape([-1 if axis == dim else 1 for axis in range(x.dim())])
    return (places == torch.argmax(x, dim, keepdim=True)).to(x.dtype)


@operator("braid.lp_normalise")
def lp_normalise(x: Tensor, dim: int, p: int) -> Tensor:
    norm = torch.linalg.vector_norm(x, p, dim, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)
