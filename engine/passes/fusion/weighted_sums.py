"""Sums of multiples fused into one unit, in a static graph.

    x ─> mul 0.4 ─┐
    y ─> mul 0.6 ─┴─> add ─┐            x, y, z ─> weighted_sum [0.4, 0.6, 1] + relu
    z ─────────────────────┴─> add ─> relu

Nodes of RandWire and of feature pyramids sum their inputs so: several passes over memory become
one. The unit stands where the last sum did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE, WEIGHTED_SUM
from braid.engine.passes.body import scalar
from braid.engine.passes.fusion.residual import is_sum
from braid.engine.passes.matching import Upstream, rewrite_static

MAX_TERMS = 8
MAX_WEIGHT = 2.0**10
"""Weights lie between its inverse and it: kernels carry quotients of two weights."""

_FLOATS = frozenset({"FP32", "BF16", "FP16"})

Terms = list[tuple[str, float]]


def fuse_weighted_sums(graph: OpGraph, constants: Mapping[str, Tensor]) -> OpGraph:
    """Fuse each sum in which a product with a number can be taken up.

    Products and sums in between are taken up where nothing else reads them.
    """
    return rewrite_static(graph, constants, partial(_fused, graph))


def _fused(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    if not is_sum(op, graph) or graph.spec(op.outputs[0]).dtype not in _FLOATS:
        return None
    left, right = (_terms(value, graph, upstream) for value in op.inputs)
    if len(left) + len(right) > MAX_TERMS:  # then the longer one stays a unit
        whole: list[Terms] = [[(name, 1.0)] for name in op.inputs]
        left, right = (whole[0], right) if len(left) > len(right) else (left, whole[1])
    terms = left + right
    if len(terms) > MAX_TERMS or all(weight == 1 for _, weight in terms):
        return None
    inputs, weights = tuple(name for name, _ in terms), [weight for _, weight in terms]
    attributes: dict[str, Literal] = {**op.attributes, "weights": [*weights]}
    return dataclasses.replace(op, kind=WEIGHTED_SUM, inputs=inputs, attributes=attributes)


def _terms(value: str, graph: OpGraph, upstream: Upstream) -> Terms:
    """Terms that a value is the sum of: itself, if it is no sum or cannot be taken up."""
    op = upstream.only_read(value, WEIGHTED_SUM, "aten.mul", "aten.add")
    if op is None or EPILOGUE in op.attributes or op.host:
        return [(value, 1.0)]
    if op.kind == WEIGHTED_SUM:
        return list(zip(op.inputs, weights_of(op), strict=True))
    if op.kind == "aten.mul" and not op.attributes:
        return _multiple(op, graph, upstream.weights) or [(value, 1.0)]
    return [(name, 1.0) for name in (op.inputs if is_sum(op, graph) else [value])]


def _multiple(op: Operator, graph: OpGraph, constants: Mapping[str, Tensor]) -> Terms | None:
    """Read a product of a tensor with a number; None for any other product."""
    for data, factor in (op.inputs, op.inputs[::-1]):
        weight = scalar(constants, factor)
        if weight is None or not 1 / MAX_WEIGHT <= abs(weight) <= MAX_WEIGHT:
            continue
        if data not in graph.constants and graph.spec(data) == graph.spec(op.outputs[0]):
            return [(data, weight)]
    return None


def weights_of(op: Operator) -> list[float]:
    weights = op.attributes["weights"]
    assert isinstance(weights, list)
    return [float(str(weight)) for weight in weights]
