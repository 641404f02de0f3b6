"""Kinds that move, view, join, cut or make tensors without arithmetic."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.kinds import operator
from braid.engine.ops.value_ranges import Shape, ValueRange

Ints = Sequence[int]
Number = float | list[float]  # a scalar operand; some models make it a list of one


def scalar(literal: Any) -> Any:
    """The one value of a scalar operand; ``ValueError`` if there are several, or none."""
    if not isinstance(literal, list):
        return literal
    if len(literal) != 1:
        raise ValueError(f"{len(literal)} values where one is wanted")
    return literal[0]


@operator("braid.shape", shape_only=True)
def shape(x: Tensor, start: int = 0, end: int | None = None) -> Tensor:
    """Extents of x from axis ``start`` up to ``end``, as INT64 on the CPU."""
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


@operator("braid.size", shape_only=True)
def size(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


@operator("braid.reshape")
def reshape(x: Tensor, shape: Ints, allow_zero: bool = False) -> Tensor:
    """0 keeps the extent unless ``allow_zero``, one -1 is inferred, as in ONNX.

    Beside an extent of 0, -1 stands for no extent in particular, which torch refuses as well.
    """
    target = list(shape)
    if not allow_zero:
        target = [x.shape[i] if extent == 0 else extent for i, extent in enumerate(target)]
    return x.reshape(target)


@operator("braid.flatten")
def flatten(x: Tensor, axis: int = 1) -> Tensor:
    """Reshape to two axes: those before ``axis``, and those from ``axis`` on."""
    axis = x.dim() if axis == x.dim() else normal_axis(axis, x.dim())
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("aten.permute")
def permute(x: Tensor, dims: Ints | None = None) -> Tensor:
    return x.permute(list(dims) if dims is not None else list(range(x.dim()))[::-1])


@operator("braid.squeeze")
def squeeze(x: Tensor, axes: Ints | int | None = None) -> Tensor:
    """Drop axes of extent 1: the named ones, or all."""
    if axes is None:
        return x.squeeze()
    axes = [axes] if isinstance(axes, int) else axes
    drop = {normal_axis(axis, x.dim()) for axis in axes}
    for axis in drop:
        if x.shape[axis] != 1:
            raise ValueError(f"axis {axis} has extent {x.shape[axis]}, only 1 can be squeezed")
    return x.reshape([extent for axis, extent in enumerate(x.shape) if axis not in drop])


@operator("braid.unsqueeze")
def unsqueeze(x: Tensor, axes: Ints | int) -> Tensor:
    """Insert axes of extent 1 at these positions of the result."""
    axes = [axes] if isinstance(axes, int) else axes
    rank = x.dim() + len(axes)
    places = different_axes(axes, rank)
    extents = iter(x.shape)
    return x.reshape([1 if axis in places else next(extents) for axis in range(rank)])


@operator("braid.slice")
def slice_(
    x: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None
) -> Tensor:
    """Slice as ONNX does; negative steps walk backwards."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index, flipped = [], []
    for axis, wanted in enumerate(sliced_positions(x.shape, starts, ends, axes, steps)):
        if wanted and wanted.step < 0:
            flipped.append(axis)
            wanted = wanted[::-1]
        index.append(slice(wanted.start, wanted.stop, wanted.step) if wanted else slice(0, 0))
    x = x[tuple(index)]
    return x.flip(flipped) if flipped else x


def sliced_positions(shape: Ints, starts: Ints, ends: Ints, axes: Ints, steps: Ints) -> list[range]:
    positions = [range(extent) for extent in shape]
    named = different_axes(axes, len(shape))
    for start, end, axis, step in zip(starts, ends, named, steps, strict=True):
        positions[axis] = _positions(start, end, step, shape[axis])
    return positions


def _positions(start: int, end: int, step: int, extent: int) -> range:
    """Elements a slice takes; unlike Python's, a far negative start walking back is element 0."""
    if step == 0:
        raise ValueError("a step of 0")
    start = start + extent if start < 0 else start
    end = end + extent if end < 0 else end
    if step < 0:
        return range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step)
    return range(min(max(start, 0), extent), min(max(end, 0), extent), step)


@operator("aten.cat")
def cat(*tensors: Tensor, dim: int) -> Tensor:
    return torch.cat(tensors, dim) if len(tensors) > 1 else tensors[0]


@operator("braid.split")
def split(
    x: Tensor, axis: int = 0, sizes: Ints | None = None, parts: int | None = None
) -> tuple[Tensor, ...]:
    """Cut along ``axis`` into ``sizes``, or into ``parts`` equal ones (the last may be smaller)."""
    extent = x.shape[axis]
    if sizes is None:
        assert parts is not None, "split needs sizes or parts"
        step = -(-extent // parts)
        sizes = [max(0, min(step, extent - i * step)) for i in range(parts)]
    if parts is not None and len(sizes) != parts:
        raise ValueError(f"{len(sizes)} sizes for {parts} parts")
    if sum(sizes) != extent:
        raise ValueError(f"sizes {list(sizes)} do not add up to extent {extent} of axis {axis}")
    return torch.split(x, list(sizes), dim=axis)


@operator("braid.expand")
def expand(x: Tensor, shape: Ints) -> Tensor:
    target = torch.broadcast_shapes(x.shape, tuple(shape))
    return x.expand(target)


@operator("braid.tile")
def tile(x: Tensor, repeats: Ints) -> Tensor:
    if len(repeats) != x.dim():
        raise ValueError(f"{len(repeats)} repeats for {x.dim()} axes")
    return x.repeat(list(repeats))


@operator("braid.pad")
def pad(
    x: Tensor,
    pads: Ints,
    mode: str = "constant",
    value: float | bool | list[float] | None = 0.0,
    axes: Ints | None = None,
) -> Tensor:
    """``pads`` is all begins, then all ends, of ``axes``; negative pads crop.

    ``mode`` is constant, reflect, edge or wrap. What is cropped is not copied into the padding.
    """
    named = different_axes(range(x.dim()) if axes is None else axes, x.dim())
    pairs = zip(named, zip(pads[: len(named)], pads[len(named) :], strict=True), strict=True)
    by_axis = dict(pairs)
    for axis, (begin, end) in by_axis.items():
        if begin < 0 or end < 0:
            x, by_axis[axis] = _cropped(x, axis, begin, end)
            if mode != "constant" and not x.shape[axis]:
                raise ValueError(f"nothing of axis {axis} is left for {mode} padding to copy")
    fill: float = scalar(value) or 0
    if mode == "constant":
        flat = [by_axis.get(axis, (0, 0)) for axis in reversed(range(x.dim()))]
        while flat and flat[-1] == (0, 0):
            flat.pop()
        if not flat:
            return x
        if x.dtype == torch.bool:
            return F.pad(x.byte(), [p for pair in flat for p in pair], value=fill).bool()
        return F.pad(x, [p for pair in flat for p in pair], value=fill)
    for axis, (begin, end) in by_axis.items():
        if begin or end:
            places = source_positions(x.shape[axis], axis, begin, end, mode)
            x = x.index_select(axis, places.to(x.device))
    return x


def _cropped(x: Tensor, axis: int, begin: int, end: int) -> tuple[Tensor, tuple[int, int]]:
    """x cropped, and the padding that is left; ``ValueError`` if more is cropped than there is."""
    extent = x.shape[axis]
    if extent + begin + end < 0:
        raise ValueError(f"padding of {begin} and {end} leaves nothing of extent {extent}")
    start, stop = min(max(0, -begin), extent), max(0, min(extent, extent + end))
    left = max(0, begin + min(0, extent + end)), max(0, end + min(0, extent + begin))
    return x.narrow(axis, start, max(0, stop - start)), left


def source_positions(extent: int, axis: int, begin: int, end: int, mode: str) -> Tensor:
    """For each position of a padded axis, the position of the axis that it copies, on the CPU."""
    places = torch.arange(-begin, extent + end, device="cpu")
    if extent == 0:
        raise ValueError(f"axis {axis} is empty, {mode} padding has nothing to copy")
    if mode == "edge":
        return places.clamp(0, extent - 1)
    if mode == "wrap":
        return places.remainder(extent)
    if mode == "reflect":
        if max(begin, end) >= extent:
            raise ValueError(f"axis {axis} of extent {extent} reflects {extent - 1} elements")
        last = extent - 1
        return last - (places.abs() - last).abs()
    raise ValueError(f"unknown pad mode {mode!r}")


@operator("braid.trilu")
def trilu(x: Tensor, upper: bool = True, k: int | list[int] = 0) -> Tensor:
    diagonal = scalar(k)
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


Moved = tuple[Ints, Ints, Ints]
"""Extents into which axes are parted, an order of them, and the extents of the result."""


def depth_to_space(shape: Ints, block: int, mode: str = "DCR") -> Moved:
    """Move channels into positions: [n, c, h, w] to [n, c / block^2, h * block, w * block]."""
    n, c, h, w = shape
    depth, result = c // block**2, (n, c // block**2, h * block, w * block)
    if mode == "CRD":
        return (n, depth, block, block, h, w), (0, 1, 4, 2, 5, 3), result
    return (n, block, block, depth, h, w), (0, 3, 4, 1, 5, 2), result


def space_to_depth(shape: Ints, block: int, mode: str = "DCR") -> Moved:
    """Move positions into channels: [n, c, h, w] to [n, c * block^2, h / block, w / block]."""
    n, c, h, w = shape
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    result = n, c * block**2, h // block, w // block
    return (n, c, h // block, block, w // block, block), order, result


def _enter_move(kind: str, move: Callable[..., Moved]) -> None:
    @operator(kind)
    def moved(x: Tensor, block: int, mode: str = "DCR") -> Tensor:
        parts, order, result = move(x.shape, block, mode)
        return x.reshape(tuple(parts)).permute(tuple(order)).reshape(tuple(result))


_enter_move("braid.depth_to_space", depth_to_space)
_enter_move("braid.space_to_depth", space_to_depth)


def _steps(shapes: Sequence[Shape | None], attributes: Mapping[str, Any]) -> Iterable[ValueRange]:
    assert shapes[0] is not None
    yield ValueRange(1, "length", 0, shapes[0][attributes["time_axis"]])


@operator("braid.reverse_sequence", values=_steps)
def reverse_sequence(x: Tensor, lengths: Tensor, batch_axis: int, time_axis: int) -> Tensor:
    """Reverse the first ``lengths[b]`` steps of each sequence b."""
    check_shape("lengths", lengths, (x.shape[batch_axis],))
    steps = torch.arange(x.shape[time_axis], device=x.device)
    ends = lengths.to(x.device).unsqueeze(1)
    source = torch.where(steps < ends, ends - 1 - steps, steps)  # [batch, time]
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    view = source.reshape(source.shape + (1,) * (x.dim() - 2)).expand(moved.shape)
    return moved.gather(1, view).movedim((0, 1), (batch_axis, time_axis))


def check_shape(what: str, operand: Tensor | None, wanted: Ints) -> None:
    """Raise ``ValueError`` for another shape, which torch would broadcast or cut; None passes."""
    if operand is not None and operand.shape != tuple(wanted):
        raise ValueError(f"{what} of shape {list(operand.shape)}, not {list(wanted)}")


def different_axes(axes: Ints, rank: int) -> list[int]:
    """The axes from the front; ``ValueError`` if there is no such axis, or one comes twice."""
    normal = [normal_axis(axis, rank) for axis in axes]
    if len(set(normal)) != len(normal):
        raise ValueError(f"axes {list(axes)} name one axis twice")
    return normal


def normal_axis(axis: int, rank: int) -> int:
    """The axis counted from the front; ``ValueError`` if there is none."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tensor with {rank} axes")
    return axis % rank if rank else 0
