"""Recognising normalisations that exporters write as several operators.

    x / sqrt(mean(x^2) + eps) * w                         rms_norm
    d = x - mean(x);  d / sqrt(mean(d^2) + eps) * w + b   layer_norm

over the last axis. 1 / sqrt(y) becomes rsqrt on the way, and wherever else it stands.
"""

from __future__ import annotations

from braid.core.graph import Operator, OpGraph
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
    number,
    rewrite,
    rule,
    value,
)

_X, _D = value("x"), value("d")
_WEIGHT, _BIAS = (constant(name, lambda t: t.dim() == 1) for name in ("weight", "bias"))
_ONE = constant("", lambda t: t.dim() == 0 and t.item() == 1)  # it widens nothing
_ROOT = Op("aten.sqrt", _X)


def _mean(operand: Pattern) -> Pattern:
    return Op("aten.mean", operand, dims=[-1], keepdim=True)


def _normalised(d: Pattern) -> Pattern:
    """d / sqrt(mean(d^2) + eps)."""
    square = either(Op("braid.pow", _D, value=2), Op("aten.mul", _D, _D), Op("aten.square", _D))
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


_RULES = (
    rule(Op("aten.div", _ONE, _ROOT), becomes("aten.rsqrt", "x")),
    rule(Op("aten.reciprocal", _ROOT), becomes("aten.rsqrt", "x")),
    rule(
        Op("aten.mul", _normalised(_CENTRED), _WEIGHT), _norm("aten.layer_norm", "x", "weight", "")
    ),
    rule(Op("aten.mul", _normalised(_D), _WEIGHT), _norm("braid.rms_norm", "d", "weight")),
    rule(Op("aten.add", _NORM, _BIAS), _with_bias),
)


def recognise_norms(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Write rsqrt, rms_norm and layer_norm as one operator each.

    Only where nothing else reads the values in between. The parts are left for dead code removal.
    """
    return rewrite(graph, weights, *_RULES)
