"""Shapes of results by arithmetic, for the kinds that most operators of large models are of.

    attempt (evaluation.py) ──floats on meta──> shape_of ──None──> torch's kernel for meta tensors

torch's kernels for meta tensors are Python that decomposes: an activation behind a convolution
takes them 2 ms, and a network of a hundred units 0.1 s, which is more than it then computes for.
They also load sympy, which takes a process 0.3 s and 32 MiB.
A rule answers only what it is sure of; what is wrong, torch says in its own words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from braid.core.graph import Literal, Operator
from braid.engine.ops.families.pooling import PoolingWindow
from braid.engine.ops.kinds import EPILOGUE, epilogue_steps, op

Shape = tuple[int, ...]
Attributes = Mapping[str, Literal]
Rule = Callable[[Sequence[Shape | None], Attributes], Shape | None]
"""Shape of the result by those of the operands; None: torch shall say."""

_GATHER = "braid.gather"
_INDICES = (torch.int32, torch.int64)
_OF_INTEGERS = {
    *("aten.add", "aten.sub", "aten.mul", "aten.maximum", "aten.minimum", "aten.div"),
    *("aten.cat", _GATHER),
}
"""Kinds whose results are of their operands' type also where that is one of ``_INDICES``."""


def shape_of(operator: Operator, operands: Sequence[Tensor | None]) -> Shape | None:
    """Shape of the only result of numbers of one type on meta; None where there is no rule."""
    definition = op(operator.kind)
    rule = _same if definition.pointwise else _RULES.get(operator.kind)
    if rule is None:
        return None
    given = [tensor for tensor in operands if tensor is not None]
    if not given or len(operator.outputs) != 1 or not all(tensor.is_meta for tensor in given):
        return None
    dtype, *others = (tensor.dtype for tensor in given)
    is_integer = operator.kind in _OF_INTEGERS and dtype in _INDICES
    if not dtype.is_floating_point and not is_integer:
        return None
    if any(other not in (_INDICES if operator.kind == _GATHER else (dtype,)) for other in others):
        return None
    shapes = [None if tensor is None else tuple(tensor.shape) for tensor in operands]
    if any(0 in shape for shape in shapes if shape is not None):
        return None
    attributes = dict(operator.attributes)
    epilogue_steps(attributes.pop(EPILOGUE, None))  # keeps the shape
    return rule(shapes, attributes)


def _same(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    return shapes[0] if len(shapes) == 1 else None


def _broadcast(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    both = [shape for shape in shapes if shape is not None]
    if len(shapes) != 2 or len(both) != 2 or attributes:
        return None
    try:
        return both[0] if both[0] == both[1] else np.broadcast_shapes(*both)
    except ValueError:
        return None


def _convolution(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    x, weight, bias = (*shapes, None)[:3]
    if len(shapes) > 3 or x is None or weight is None or attributes.get("transposed"):
        return None
    groups = attributes.get("groups", 1)
    axes = len(x) - 2
    stride, padding, dilation = (
        _numbers(attributes.get(name), usual, axes)
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    if axes < 1 or len(weight) != len(x) or not isinstance(groups, int) or groups < 1:
        return None
    if x[1] != weight[1] * groups or weight[0] % groups:
        return None
    if stride is None or padding is None or dilation is None or bias not in (None, weight[:1]):
        return None
    if min(*stride, *dilation) < 1 or min(padding) < 0:
        return None
    spatial = [
        (extent + 2 * pad - (taps - 1) * spread - 1) // step + 1
        for extent, pad, taps, spread, step in zip(
            x[2:], padding, weight[2:], dilation, stride, strict=True
        )
    ]
    return (x[0], weight[0], *spatial) if min(spatial) > 0 else None


def _linear(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    x, weight, bias = (*shapes, None)[:3]
    if len(shapes) > 3 or not x or weight is None or attributes:
        return None
    fits = len(weight) == 2 and x[-1] == weight[1] and bias in (None, weight[:1])
    return (*x[:-1], weight[0]) if fits else None


def _plus_summand(rule: Rule) -> Rule:
    def shape(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
        result = rule(shapes[:3], attributes)
        return result if len(shapes) == 4 and shapes[3] == result else None

    return shape


def _layer_norm(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    x, axis = shapes[0], attributes.get("axis")
    if x is None or not isinstance(axis, int) or not -len(x) <= axis < len(x):
        return None
    return x if all(shape in (None, x[axis:]) for shape in shapes[1:]) else None


def _global_pool(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    (x,) = shapes
    return None if x is None or len(x) < 3 else (*x[:2], *[1] * (len(x) - 2))


def _numbers(literal: Literal, usual: int, count: int) -> list[int] | None:
    """Return an attribute of a window as a number for each axis; None if it is not."""
    if not literal:
        return [usual] * count
    if not isinstance(literal, list | tuple) or len(literal) != count:
        return None
    numbers = [number for number in literal if isinstance(number, int)]
    return numbers if len(numbers) == count else None


def _quotient(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    """Shape of what is of the type of the operands also where they are integers."""
    return _broadcast(shapes, {}) if attributes == {"truncate": True} else None


def _matmul(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    left, right = shapes
    if attributes or left is None or right is None or min(len(left), len(right)) < 2:
        return None
    rows = _broadcast((left[:-2], right[:-2]), {})
    fits = rows is not None and left[-1] == right[-2]
    return (*rows, left[-2], right[-1]) if fits and rows is not None else None


def _rms_norm(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    return None if None in shapes else _layer_norm(shapes, attributes)


def _softmax(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    (x,) = shapes
    return None if x is None or _axis(attributes.get("dim"), x) is None else x


def _concatenation(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    parts = [shape for shape in shapes if shape is not None]
    axis = _axis(attributes.get("dim"), parts[0])
    if len(parts) < len(shapes) or axis is None:
        return None
    around = {(len(shape), shape[:axis], shape[axis + 1 :]) for shape in parts}
    if len(around) > 1:
        return None
    ((_, before, after),) = around
    return (*before, sum(shape[axis] for shape in parts), *after)


def _reduction(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    (x,) = shapes
    dims = attributes.get("dims")
    if x is None or not isinstance(dims, list) or not dims:
        return None
    axes = {_axis(dim, x) for dim in dims}
    if None in axes or len(axes) < len(dims):
        return None
    kept = (1,) if attributes.get("keepdim") else ()
    return tuple(
        extent for axis, whole in enumerate(x) for extent in (kept if axis in axes else (whole,))
    )


def _gather(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    x, indices = shapes
    if x is None or indices is None or (axis := _axis(attributes.get("axis", 0), x)) is None:
        return None
    return (*x[:axis], *indices, *x[axis + 1 :])


def _pool(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape | None:
    (x,) = shapes
    names = {field.name for field in fields(PoolingWindow)}
    try:
        window = PoolingWindow(**{k: v for k, v in attributes.items() if k in names})  # type: ignore[arg-type]
        if x is None or not 0 < len(window.kernel) < 4:
            return None
        if min(*window.kernel, *window.stride, *window.dilation) < 1:
            return None
        counts = window.counts_of(x[2:])
        _, pairs = window.clipped(torch.empty(x, device="meta"))
        if any(min(pair) < -extent for pair, extent in zip(pairs, x[2:], strict=True)):
            return None  # no window reaches the data, which kernels refuse
        return *x[:2], *counts
    except (TypeError, ValueError):
        return None


def _axis(axis: Literal, shape: Shape) -> int | None:
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    return axis % len(shape)


_RULES: Mapping[str, Rule] = {
    "aten.convolution": _convolution,
    "braid.convolution_add": _plus_summand(_convolution),
    "aten.linear": _linear,
    "braid.linear_add": _plus_summand(_linear),
    "aten.layer_norm": _layer_norm,
    "braid.global_avg_pool": _global_pool,
    "braid.global_max_pool": _global_pool,
    **dict.fromkeys(("aten.add", "aten.sub", "aten.mul", "aten.maximum"), _broadcast),
    "aten.minimum": _broadcast,
    "aten.div": _quotient,
    "aten.matmul": _matmul,
    "aten.cat": _concatenation,
    "braid.rms_norm": _rms_norm,
    **dict.fromkeys(("aten.softmax", "aten.log_softmax"), _softmax),
    **dict.fromkeys(("aten.mean", "aten.sum", "aten.amax", "aten.amin"), _reduction),
    **dict.fromkeys(("braid.max_pool", "braid.avg_pool"), _pool),
    _GATHER: _gather,
}
