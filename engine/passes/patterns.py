"""Recognising activations and normalisations that exporters write as several operators.

    x * sigmoid(x)                                        silu
    clip(x + 3, 0, 6) / 6                                 hardsigmoid, and times x: hardswish
    0.5 * x * (1 + erf(x / sqrt(2)))                      gelu
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))
    x / sqrt(mean(x^2) + eps) * w                         rms_norm
    d = x - mean(x);  d / sqrt(mean(d^2) + eps) * w + b   layer_norm

Means are over the last axis. 1 / sqrt(y) becomes rsqrt on the way, and wherever else it stands. A
product is read as a set of factors, however it is bracketed.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.body import Weights, scalar
from braid.engine.passes.matching import (
    Build,
    Captures,
    Op,
    Pattern,
    Upstream,
    becomes,
    constant,
    either,
    fits,
    match_all,
    number,
    rewrite,
    rule,
    value,
)

_MOST_FACTORS = 4


class _Product:
    """A number times some values, as products and quotients in any order."""

    def __init__(self, number: float | Callable[[float], bool], *factors: Pattern) -> None:
        self._number, self._factors = number, factors

    def __call__(self, value: str, upstream: Upstream, captures: Captures) -> Iterator[Captures]:
        op = upstream.makers.get(value)
        if op is None or op.kind not in ("aten.mul", "aten.div") or EPILOGUE in op.attributes:
            return
        if captures and upstream.reads[value] != 1:
            return
        number, values = _factors(op, upstream)
        if len(values) == len(self._factors) and fits(number, self._number):
            for order in permutations(values):
                yield from match_all(self._factors, order, upstream, captures)


def _factors(op: Operator, upstream: Upstream) -> tuple[float, list[str]]:
    """(number, values) whose product ``op`` computes; inner products are opened."""
    number, pending = 1.0, [op]
    values: list[str] = []
    while pending:
        product = pending.pop()
        operands, factor = _with_scalar(product, upstream.weights)
        if not operands:
            return number, [product.outputs[0]]  # a quotient of two values is no product
        number *= factor
        for operand in operands:
            inner = upstream.only_read(operand, "aten.mul", "aten.div")
            opens = inner is not None and _with_scalar(inner, upstream.weights)[0]
            if inner is not None and opens and len(values) + len(pending) < _MOST_FACTORS:
                pending.append(inner)
            else:
                values.append(operand)
    return number, values


def _with_scalar(op: Operator, weights: Weights) -> tuple[list[str], float]:
    """Operands of a product and its number; no operands for a quotient of values."""
    left, right = op.inputs
    number = scalar(weights, right)
    if number:  # neither None nor 0
        return [left], number if op.kind == "aten.mul" else 1 / number
    if op.kind == "aten.div":
        return [], 1.0
    number = scalar(weights, left)
    return ([right], number) if number else ([left, right], 1.0)


_X = value("x")
_SIXTH = 1 / 6


def _near(target: float) -> Callable[[float], bool]:
    """Exporters write sqrt(2) and 1/6 with few digits."""
    return partial(math.isclose, target, rel_tol=1e-4)


_CLIPPED = Op("aten.clamp", Op("aten.add", _X, number(3)), min=0, max=6)
_ROOT_OF_2 = math.sqrt(2)
_HALVED = either(
    Op("aten.div", _X, number(_near(_ROOT_OF_2))), Op("aten.mul", _X, number(_near(1 / _ROOT_OF_2)))
)
_ONE_PLUS_ERF = Op("aten.add", Op("aten.erf", _HALVED), number(1))
_CUBIC = either(
    _Product(_near(0.044715), Op("braid.pow", _X, value=3)), _Product(_near(0.044715), _X, _X, _X)
)
_SLOPE = Op("aten.add", number(1), _Product(_near(0.044715), _X, _X))
_ROOT_OF_2_BY_PI = _near(math.sqrt(2 / math.pi))
_BENT = either(
    _Product(_ROOT_OF_2_BY_PI, Op("aten.add", _X, _CUBIC)), _Product(_ROOT_OF_2_BY_PI, _X, _SLOPE)
)
_ONE_PLUS_TANH = Op("aten.add", Op("aten.tanh", _BENT), number(1))
_HARDSIGMOID = Op("braid.hardsigmoid", _X, alpha=_near(_SIXTH), beta=0.5)

_ACTIVATIONS = (
    rule(
        _Product(_near(_SIXTH), _CLIPPED), becomes("braid.hardsigmoid", "x", alpha=_SIXTH, beta=0.5)
    ),
    rule(_Product(_near(_SIXTH), _X, _CLIPPED), becomes("aten.hardswish", "x")),
    rule(_Product(_near(0.5), _X, _ONE_PLUS_ERF), becomes("aten.gelu", "x", approximate="none")),
    rule(_Product(_near(0.5), _X, _ONE_PLUS_TANH), becomes("aten.gelu", "x", approximate="tanh")),
    rule(_Product(1, _X, Op("aten.sigmoid", _X)), becomes("aten.silu", "x")),
    rule(_Product(1, _X, _HARDSIGMOID), becomes("aten.hardswish", "x")),
)


def recognise_activations(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Only where nothing else reads the values in between; parts are left for dead code removal."""
    return rewrite(graph, weights, *_ACTIVATIONS)


_D = value("d")
_WEIGHT, _BIAS = (constant(name, lambda t: t.dim() == 1) for name in ("weight", "bias"))
_ONE = constant("", lambda t: t.dim() == 0 and t.item() == 1)  # it widens nothing
_ROOT = Op("aten.sqrt", _X)


def _mean(operand: Pattern) -> Pattern:
    return Op("aten.mean", operand, dims=[-1], keepdim=True)


def _normalised(d: Pattern) -> Pattern:
    """d / sqrt(mean(d^2) + eps)."""
    square = either(Op("braid.pow", _D, value=2), Op("aten.mul", _D, _D))
    variance = Op("aten.add", _mean(square), number(lambda _: True, "eps"))
    return either(
        Op("aten.mul", d, Op("aten.rsqrt", variance)), Op("aten.div", d, Op("aten.sqrt", variance))
    )


_CENTRED = Op("aten.sub", _X, _mean(_X), name="d", readers=2)
_NORM = Op("aten.layer_norm", _X, _WEIGHT, name="norm")


def _norm(kind: str, *operands: str) -> Build:
    def build(op: Operator, captures: Captures, upstream: Upstream) -> Operator | None:
        eps = scalar(upstream.weights, captures["eps"])
        return becomes(kind, *operands, axis=-1, eps=eps)(op, captures, upstream)

    return build


def _with_bias(op: Operator, captures: Captures, upstream: Upstream) -> Operator | None:
    norm = upstream.makers[captures["norm"]]
    weight, bias = (upstream.weights[captures[name]] for name in ("weight", "bias"))
    if any(norm.inputs[2:]) or weight.shape != bias.shape:
        return None
    build = becomes(norm.kind, "x", "weight", "bias", **norm.attributes)
    return build(op, captures, upstream)


_NORMS = (
    rule(Op("aten.div", _ONE, _ROOT), becomes("aten.rsqrt", "x")),
    rule(Op("aten.reciprocal", _ROOT), becomes("aten.rsqrt", "x")),
    rule(
        Op("aten.mul", _normalised(_CENTRED), _WEIGHT), _norm("aten.layer_norm", "x", "weight", "")
    ),
    rule(Op("aten.mul", _normalised(_D), _WEIGHT), _norm("braid.rms_norm", "d", "weight")),
    rule(Op("aten.add", _NORM, _BIAS), _with_bias),
)


def recognise_norms(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """As ``recognise_activations``, for rsqrt, rms_norm and layer_norm."""
    return rewrite(graph, weights, *_NORMS)
