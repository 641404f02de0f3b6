"""Sums of multiples fused into one unit, in a static graph.

    x ─> mul 0.4 ─┐
    y ─> mul 0.6 ─┴─> add ─┐            x, y, z ─> weighted_sum [0.4, 0.6, 1] + relu
    z ─────────────────────┴─> add ─> relu

Nodes of RandWire and of feature pyramids sum their inputs so: several passes over memory become
one. The unit stands where the last sum did.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE, WEIGHTED_SUM
from braid.engine.passes.body import scalar
from braid.engine.passes.fusion.residual import is_sum

MAX_TERMS = 8
MAX_WEIGHT = 2.0**10
"""Weights lie between its inverse and it: kernels carry quotients of two weights."""

_FLOATS = frozenset({"FP32", "BF16", "FP16"})

Terms = list[tuple[str, float]]


def fuse_weighted_sums(graph: OpGraph, constants: Mapping[str, Tensor]) -> OpGraph:
    """Fuse each sum in which a product with a number can be taken up.

    Products and sums in between are taken up where nothing else reads them.
    """
    reads = Counter(name for op in graph.operators for name in op.inputs)
    reads.update(graph.outputs.values())
    made: dict[str, Operator] = {}  # by value, in order

    def terms(value: str) -> Terms:
        op = made.get(value)
        if op is None or reads[value] != 1 or EPILOGUE in op.attributes or op.host:
            return [(value, 1.0)]
        if op.kind == WEIGHTED_SUM:
            return list(zip(op.inputs, weights_of(op), strict=True))
        if op.kind == "aten.mul" and not op.attributes:
            return _multiple(op, graph, constants) or [(value, 1.0)]
        if is_sum(op, graph):
            return [(operand, 1.0) for operand in op.inputs]
        return [(value, 1.0)]

    for op in graph.operators:
        if is_sum(op, graph) and graph.spec(op.outputs[0]).dtype in _FLOATS:
            left, right = map(terms, op.inputs)
            if len(left) + len(right) > MAX_TERMS:  # then the longer one stays a unit
                whole = [[(name, 1.0)] for name in op.inputs]
                left, right = (whole[0], right) if len(left) > len(right) else (left, whole[1])
            found = left + right
            if len(found) <= MAX_TERMS and any(weight != 1 for _, weight in found):
                for operand in set(op.inputs) - {name for name, _ in found}:
                    del made[operand]
                op = _weighted(op, found)
        made.update(dict.fromkeys(op.outputs, op))
    kept = tuple({op.name: op for op in made.values()}.values())
    values = {name for op in kept for name in op.outputs}
    specs = {name: spec for name, spec in graph.specs.items() if name in values}
    return dataclasses.replace(graph, operators=kept, specs=specs)


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
    """Weights of the operands of a weighted sum."""
    weights = op.attributes["weights"]
    assert isinstance(weights, list)
    return [float(str(weight)) for weight in weights]


def _weighted(total: Operator, terms: Terms) -> Operator:
    return dataclasses.replace(
        total,
        kind=WEIGHTED_SUM,
        inputs=tuple(name for name, _ in terms),
        attributes={**total.attributes, "weights": [weight for _, weight in terms]},
    )
