"""What is known of the elements in one region of a padded tensor, and elementwise operators on it.

mask 0 ──1 - x──> POINT 1 ──x * -3.4e38──> POINT -3.4e38 ──scores + x──> HIDDEN
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from braid.core.graph import WEIGHTS, Operator
from braid.engine.ops.kinds import OPS, WEIGHTED_SUM, call


class Kind(Enum):
    """Kinds of elements, in one region."""

    POINT = 1  # all the same number, which is known
    FINITE = 2  # finite numbers of ordinary size
    HIDDEN = 3  # so low that a softmax makes them 0 beside any of ordinary size; -inf among them
    MIXED = 4  # finite of ordinary size, or hidden
    WILD = 5  # anything, NaN among it


HIDING = -1e4
"""Added to a score or put in its place, this hides it: exp of it is 0 beside ordinary scores."""

FIRM = -1e30
"""This hides scores of any size that weights in FP32 make."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Elements of one region. ``value``: of a point; of what is hidden, the weakest that hides."""

    kind: Kind
    value: float = 0.0

    @property
    def is_finite(self) -> bool:
        return self.kind is Kind.FINITE or (self.kind is Kind.POINT and abs(self.value) < -HIDING)

    @property
    def is_zero(self) -> bool:
        return self.kind is Kind.POINT and self.value == 0

    @property
    def is_hidden(self) -> bool:
        return self.kind is Kind.HIDDEN or (self.kind is Kind.POINT and self.value <= HIDING)

    @property
    def is_tame(self) -> bool:
        """Whether no element is NaN or infinite upwards."""
        return self.is_finite or self.is_hidden or self.kind is Kind.MIXED


FINITE = Fill(Kind.FINITE)
MIXED = Fill(Kind.MIXED)
WILD = Fill(Kind.WILD)
ZERO = Fill(Kind.POINT, 0.0)
ONE = Fill(Kind.POINT, 1.0)


def join(*fills: Fill) -> Fill:
    """Return what holds of elements that are each of one of ``fills``."""
    if len(set(fills)) == 1:
        return fills[0]
    if all(fill.is_finite for fill in fills):
        return FINITE
    if all(fill.is_hidden for fill in fills):
        return Fill(Kind.HIDDEN, max(fill.value for fill in fills))
    return MIXED if all(fill.is_tame for fill in fills) else WILD


def fill_of(content: Tensor) -> Fill:
    """Return what holds of the elements of a constant."""
    if content.numel() == 0:
        return FINITE
    plain = content.byte() if content.dtype == torch.bool else content
    low, high = float(plain.min()), float(plain.max())
    if math.isnan(low):
        return WILD
    if low == high:
        return Fill(Kind.POINT, low)
    if high <= HIDING:
        return Fill(Kind.HIDDEN, high)
    if high >= -HIDING:
        return WILD
    if low > HIDING:
        return FINITE
    return MIXED


_SAFE = frozenset(
    f"aten.{name}"
    for name in (
        *("relu", "sigmoid", "tanh", "erf", "gelu", "silu", "mish", "hardswish", "leaky_relu"),
        *("elu", "celu", "softsign", "softplus", "hardtanh", "logsigmoid", "abs", "neg", "sign"),
        *("floor", "ceil", "round", "sin", "cos", "atan", "square", "clamp", "bitwise_not"),
        *("logical_not", "logical_xor", "maximum", "minimum", "prelu"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or"),
        *("eq", "ne", "lt", "le", "gt", "ge", "isnan"),
    )
) | {f"braid.{name}" for name in (
    *("cast", "cast_like", "identity", "hardsigmoid", "softplus", "selu", "thresholded_relu"),
    *("shrink", "prelu", "isinf"),
)}  # fmt: skip
"""Kinds that make finite numbers of finite ones."""

_ELEMENTWISE = _SAFE | {
    *("aten.add", "aten.sub", "aten.mul", "aten.div", "aten.where", "aten.remainder", "aten.fmod"),
    *("braid.pow", "braid.affine", "braid.bit_cast", "aten.atan2", WEIGHTED_SUM),
}


def is_elementwise(kind: str) -> bool:
    return kind in _ELEMENTWISE or (kind in OPS and OPS[kind].pointwise)


def elementwise(
    operator: Operator, fills: Sequence[Fill | None], dtypes: Sequence[torch.dtype | None]
) -> Fill:
    """Return what holds of the results of an elementwise operator, without its epilogue."""
    given = [fill for fill in fills if fill is not None]
    if all(fill.kind is Kind.POINT for fill in given):
        return _evaluated(operator, fills, dtypes)
    special = _SPECIAL.get(operator.kind)
    result = special(given, operator.attributes) if special else None
    if result is not None:
        return result
    finite = all(fill.is_finite for fill in given)
    return FINITE if finite and operator.kind in _SAFE else WILD


def _evaluated(
    operator: Operator, fills: Sequence[Fill | None], dtypes: Sequence[torch.dtype | None]
) -> Fill:
    operands = [
        None if fill is None else torch.tensor(fill.value, dtype=dtype)
        for fill, dtype in zip(fills, dtypes, strict=True)
    ]
    try:
        (result, *_) = call(operator, operands)
    except Exception:  # torch raises whatever it likes: such elements are not known
        return WILD
    value = float(result)
    return WILD if math.isnan(value) else Fill(Kind.POINT, value)


Attributes = Mapping[str, Any]


def _where(fills: Sequence[Fill], _: Attributes) -> Fill | None:
    condition, yes, no = fills
    if condition.kind is Kind.POINT:
        return yes if condition.value else no
    return join(yes, no)


def _add(fills: Sequence[Fill], _: Attributes) -> Fill | None:
    if all(fill.is_finite for fill in fills):
        return FINITE
    if all(fill.is_finite or fill.is_hidden for fill in fills):
        return Fill(Kind.HIDDEN, min(fill.value for fill in fills if fill.is_hidden))
    return MIXED if all(fill.is_tame for fill in fills) else None


def _sub(fills: Sequence[Fill], attributes: Attributes) -> Fill | None:
    left, right = fills
    if right.is_finite:
        return _add([left, FINITE], attributes)
    if right.kind is Kind.POINT and right.value >= -HIDING and left.is_finite:
        return Fill(Kind.HIDDEN, -right.value)
    return None


def _scaled(fill: Fill, factor: float) -> Fill | None:
    if fill.is_finite and abs(factor) < -HIDING:
        return FINITE
    if fill.kind is Kind.FINITE:
        return MIXED  # 0 or hidden, as a rule; what is huge and positive is so without padding, too
    if fill.is_hidden and factor > 0 and fill.value * factor <= HIDING:
        return Fill(Kind.HIDDEN, fill.value * factor)
    return MIXED if fill.is_tame and 0 < factor < -HIDING else None


def _mul(fills: Sequence[Fill], _: Attributes) -> Fill | None:
    left, right = fills
    if left.is_zero or right.is_zero:
        return ZERO if left.is_finite and right.is_finite else None
    if left.kind is Kind.POINT or right.kind is Kind.POINT:
        point, other = (left, right) if left.kind is Kind.POINT else (right, left)
        return _scaled(other, point.value)
    return FINITE if left.is_finite and right.is_finite else None


def _div(fills: Sequence[Fill], _: Attributes) -> Fill | None:
    left, right = fills
    if right.kind is Kind.POINT and right.value:
        return _scaled(left, 1 / right.value)
    return None


def _affine(fills: Sequence[Fill], attributes: Attributes) -> Fill | None:
    scale, shift = float(attributes["scale"]), float(attributes["shift"])
    scaled = _scaled(fills[0], scale)
    shifted = fill_of(torch.tensor([shift]))
    return None if scaled is None else _add([scaled, shifted], {})


def _weighted(fills: Sequence[Fill], attributes: Attributes) -> Fill | None:
    scaled = [_scaled(f, float(w)) for f, w in zip(fills, attributes[WEIGHTS], strict=True)]
    return None if None in scaled else _add([fill for fill in scaled if fill], {})


def _pow(fills: Sequence[Fill], attributes: Attributes) -> Fill | None:
    exponent = attributes.get("value") if len(fills) == 1 else fills[1].value
    is_point = len(fills) == 1 or fills[1].kind is Kind.POINT
    if is_point and fills[0].is_finite and exponent in (0, 1, 2, 3, 4):
        return FINITE
    return None


def _cast(fills: Sequence[Fill], attributes: Attributes) -> Fill | None:
    """To a narrower float, what is hidden stays so, or becomes -inf."""
    stays = fills[0].is_tame and str(attributes["dtype"]) in ("FP16", "BF16", "FP32", "FP64")
    return fills[0] if stays and not fills[0].is_finite else None


def _absorbing(point: float) -> Callable[[Sequence[Fill], Attributes], Fill | None]:
    def fold(fills: Sequence[Fill], _: Attributes) -> Fill | None:
        if any(fill.kind is Kind.POINT and bool(fill.value) == bool(point) for fill in fills):
            return Fill(Kind.POINT, point)
        return None

    return fold


def _is_nan(fills: Sequence[Fill], _: Attributes) -> Fill | None:
    return ZERO if fills[0].is_tame else None


def _maximum(fills: Sequence[Fill], _: Attributes) -> Fill | None:
    if all(fill.is_hidden for fill in fills):
        return Fill(Kind.HIDDEN, max(fill.value for fill in fills))
    if any(fill.is_finite for fill in fills) and all(f.is_finite or f.is_hidden for f in fills):
        return FINITE
    return MIXED if all(fill.is_tame for fill in fills) else None


def _clamp(fills: Sequence[Fill], attributes: Attributes) -> Fill | None:
    low = attributes.get("min")
    if fills[0].is_finite or len(fills) > 1 or low is None:
        return None
    return _maximum([fills[0], fill_of(torch.tensor([float(low)]))], {})


_SPECIAL: Mapping[str, Callable[[Sequence[Fill], Attributes], Fill | None]] = {
    "aten.where": _where,
    "aten.add": _add,
    "aten.sub": _sub,
    "aten.mul": _mul,
    "aten.div": _div,
    "braid.affine": _affine,
    WEIGHTED_SUM: _weighted,
    "braid.cast": _cast,
    "braid.pow": _pow,
    "aten.logical_and": _absorbing(0.0),
    "aten.logical_or": _absorbing(1.0),
    "aten.isnan": _is_nan,
    "aten.maximum": _maximum,
    "aten.clamp": _clamp,
}
