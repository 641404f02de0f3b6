"""Kinds that make tensors from numbers, and that pick, place, sort and encode elements."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.families.shape import Number, check_shape, normal_axis, scalar
from braid.engine.ops.kinds import operator
from braid.engine.ops.value_ranges import along_axis, index_tuples

Ints = Sequence[int]


@operator("braid.constant_of_shape")
def constant_of_shape(shape: Ints, value: float | int | bool, dtype: str) -> Tensor:
    return torch.full(list(shape), value, dtype=torch_dtype(dtype))


@operator("braid.full_like")
def full_like(x: Tensor, value: float, dtype: str | None = None) -> Tensor:
    return torch.full_like(x, value, dtype=torch_dtype(dtype) if dtype else x.dtype)


@operator("braid.range")
def range_(like: Tensor, start: Number, limit: Number, delta: Number) -> Tensor:
    """start, start + delta, ... below ``limit``, in the type of ``like``."""
    first, end, step = scalar(start), scalar(limit), scalar(delta)
    if step == 0 or not all(map(math.isfinite, (first, end, step))):
        raise ValueError(f"a range from {first} to {end} in steps of {step}")
    count = max(0, math.ceil((end - first) / step))
    wide = torch.float64 if like.is_floating_point() else torch.int64
    steps: Tensor = torch.arange(count, dtype=wide, device=like.device) * step + first
    return steps.to(like.dtype)


@operator("braid.eye_like")
def eye_like(x: Tensor, k: int = 0, dtype: str | None = None) -> Tensor:
    kind = torch_dtype(dtype) if dtype else x.dtype
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[1], device=x.device)
    return (columns - rows == k).to(kind)


def _counted_from_front(indices: Tensor, extent: int) -> Tensor:
    """Return indices counted from the front, as torch wants them; ONNX allows negative ones."""
    indices = indices.long()
    return torch.where(indices < 0, indices + extent, indices)


def flat_places(tuples: Tensor, extents: Ints) -> Tensor:
    """Positions in axes of these extents, flattened, of the index tuples in the last axis."""
    flat = torch.zeros(tuples.shape[:-1], dtype=torch.int64, device=tuples.device)
    for axis, extent in enumerate(extents):
        flat = flat * extent + _counted_from_front(tuples[..., axis], extent)
    return flat


@operator("braid.gather", values=along_axis, fails=True)
def gather(x: Tensor, indices: Tensor, axis: int = 0, wrap: bool = True) -> Tensor:
    """The axis is replaced by the axes of ``indices``; ``wrap`` allows negative ones."""
    axis = normal_axis(axis, x.dim())
    places = _counted_from_front(indices, x.shape[axis]) if wrap else indices.long()
    picked = x.index_select(axis, places.reshape(-1))
    return picked.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


operator("aten.select")(torch.select)


@operator("braid.gather_elements", values=along_axis, fails=True)
def gather_elements(x: Tensor, indices: Tensor, axis: int = 0, wrap: bool = True) -> Tensor:
    """Pick one element of x along ``axis`` for each index; ``wrap`` allows negative ones."""
    places = _counted_from_front(indices, x.shape[axis]) if wrap else indices.long()
    return x.gather(axis, places)


@operator("braid.gather_nd", values=index_tuples)
def gather_nd(x: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
    """Pick slices of x at the index tuples in the last axis of ``indices``."""
    depth = indices.shape[-1]
    batch = x.shape[:batch_dims]
    rows = x.reshape((-1, *x.shape[batch_dims:]))
    tuples = indices.reshape((rows.shape[0], -1, depth))
    index = [torch.arange(rows.shape[0], device=x.device).unsqueeze(1).expand(tuples.shape[:2])]
    for i, extent in enumerate(rows.shape[1 : 1 + depth]):
        index.append(_counted_from_front(tuples[..., i], extent))
    picked = rows[tuple(index)]
    return picked.reshape(batch + indices.shape[batch_dims:-1] + x.shape[batch_dims + depth :])


_SCATTER_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("braid.scatter_elements", values=along_axis, fails=True)
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """Return x with each update put (or reduced) into its place along ``axis``."""
    check_shape("updates", updates, indices.shape)
    places = _counted_from_front(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _SCATTER_REDUCTIONS[reduction])


@operator("braid.scatter_nd", values=index_tuples)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    """Return x with each slice of updates put (or reduced) at its index tuple."""
    depth = indices.shape[-1]
    extents = x.shape[:depth]
    check_shape("updates", updates, indices.shape[:-1] + x.shape[depth:])
    rows = x.reshape([extents.numel(), -1])
    places = flat_places(indices, extents).reshape(-1, 1).expand(-1, rows.shape[1])
    values = updates.reshape(places.shape)
    if reduction == "none":
        return rows.scatter(0, places, values).reshape(x.shape)
    how = _SCATTER_REDUCTIONS[reduction]
    return rows.scatter_reduce(0, places, values, how).reshape(x.shape)


@operator("braid.topk")
def topk(
    x: Tensor, k: int | list[int], dim: int = -1, largest: bool = True, sort: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest (or smallest) and their positions; equal values in order of position."""
    count = int(scalar(k))
    if not 0 <= count <= x.shape[dim]:
        raise ValueError(f"the {count} largest of {x.shape[dim]} elements")
    values, places = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, count), places.narrow(dim, 0, count)


@operator("braid.one_hot")
def one_hot(indices: Tensor, values: Tensor, depth: Number, axis: int = -1) -> Tensor:
    """Put ``values[1]`` at each index along a new axis of extent ``depth``, else ``values[0]``."""
    check_shape("values", values, (2,))
    extent = int(scalar(depth))
    if extent < 1:
        raise ValueError(f"a depth of {extent}")
    rank = indices.dim() + 1
    axis = normal_axis(axis, rank)
    places = torch.arange(extent, device=indices.device)
    places = places.reshape([-1 if i == axis else 1 for i in range(rank)])
    hot = _counted_from_front(indices, extent).unsqueeze(axis) == places
    return torch.where(hot, values[1], values[0])


@operator("braid.nonzero")
def nonzero(x: Tensor) -> Tensor:
    """Positions of non-zero elements, [rank, count]; the shape depends on the data."""
    if x.is_meta:
        raise ValueError("the shape of the result depends on the data")
    return torch.nonzero(x).transpose(0, 1)


@operator("braid.compress")
def compress(x: Tensor, condition: list[bool], axis: int | None = None) -> Tensor:
    """Pick slices along ``axis`` (of the flattened x without one) where ``condition`` holds."""
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    places = [place for place, is_kept in enumerate(condition[: x.shape[axis]]) if is_kept]
    return x.index_select(axis, torch.tensor(places, dtype=torch.int64, device=x.device))
