"""Shapes of results by arithmetic, for the kinds that most operators of large models are of.

    attempt (evaluation.py) ──floats on meta──> shape_of ──None──> torch's kernel for meta tensors

torch's kernels for meta tensors are Python that decomposes: an activation behind a convolution
takes them 2 ms, and a network of a hundred units 0.1 s, which is more than it then computes for.
A rule answers only what it is sure of; what is wrong, torch says in its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from braid.core.graph import Literal, Operator
from braid.engine.ops.kinds import EPILOGUE, epilogue_steps, op

Shape = tuple[int, ...]
Attributes = Mapping[str, Literal]
Rule = Callable[[Sequence[Shape | None], Attributes], Shape | None]
"""Shape of the result by those of the operands; None: torch shall say."""


def shape_of(operator: Operator, operands: Sequence[Tensor | None]) -> Shape | None:
    """Return the shape of the only result, which is of the type of all operands.

    None where there is no rule, or the operands are not floats of one type on meta.
    """
    definition = op(operator.kind)
    rule = _same if definition.pointwise else _RULES.get(operator.kind)
    if rule is None:
        return None
    given = [tensor for tensor in operands if tensor is not None]
    if not given or not given[0].is_floating_point() or len(operator.outputs) != 1:
        return None
    dtype = given[0].dtype
    if any(tensor.dtype != dtype or not tensor.is_meta for tensor in given):
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
    if len(shapes) != 2 or attributes:
        return None
    left, right = shapes
    if left is None or right is None:
        return None
    if left == right:
        return left
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    extents = [(a if b == 1 else b) if a == 1 or b in (1, a) else 0 for a, b in pairs]
    return None if 0 in extents else tuple(extents)


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


_RULES: Mapping[str, Rule] = {
    "aten.convolution": _convolution,
    "braid.convolution_add": _plus_summand(_convolution),
    "aten.linear": _linear,
    "braid.linear_add": _plus_summand(_linear),
    "aten.layer_norm": _layer_norm,
    "braid.global_avg_pool": _global_pool,
    "braid.global_max_pool": _global_pool,
    **dict.fromkeys(("aten.add", "aten.sub", "aten.mul", "aten.maximum"), _broadcast),
    **dict.fromkeys(("aten.minimum", "aten.div"), _broadcast),
}
