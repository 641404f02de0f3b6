"""Constant folding: operators on constants are evaluated once, at import."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.arithmetic.quantised_unit import DEQUANTISE
from braid.engine.ops.evaluation import attempt, meta_like
from braid.engine.passes.body import Body, Weights, everywhere

_FREE_BYTES = 1 << 20  # results up to this size are folded whatever they come from
_MAX_HOST_ELEMENTS = 4096


def fold_constants(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Evaluate operators whose operands are all known, and turn known host operands to attributes.

    Budget: a result larger than both 1 MiB and the constants it comes from (an Expand, a
    ConstantOfShape) is left to run time, so folding never makes a model much larger. Sizes are
    found on meta tensors before anything is allocated. Operators that make a graph output stay.
    """
    return everywhere(_fold, graph, weights)


def _fold(body: Body, weights: dict[str, Tensor]) -> Body:
    kept = []
    for op in (_host_to_attributes(op, weights) for op in body.operators):
        values = None
        if not (body.top and set(op.outputs) & set(body.results)):
            values = _evaluate(op, weights)
        if values is None:
            kept.append(op)
        else:
            weights.update(zip(op.outputs, values, strict=True))
    return dataclasses.replace(body, operators=tuple(kept))


def _host_to_attributes(op: Operator, weights: Weights) -> Operator:
    known = {
        attribute: as_literal(weights[value])
        for attribute, value in op.host.items()
        if value in weights and weights[value].numel() <= _MAX_HOST_ELEMENTS and not op.branches
    }
    if not known:
        return op
    return dataclasses.replace(
        op,
        attributes={**op.attributes, **known},
        host={attribute: value for attribute, value in op.host.items() if attribute not in known},
    )


def as_literal(tensor: Tensor) -> Literal:
    """Content of a small tensor as an attribute: a number, or a nested list of numbers."""
    literal: Literal = tensor.tolist()
    return literal


def _evaluate(op: Operator, weights: Weights) -> tuple[Tensor, ...] | None:
    """Outputs of an operator; None if its operands are not known or the outputs too large.

    Weights that the lowering left in integers stay so.
    """
    if (
        op.kind == DEQUANTISE
        or op.host
        or op.branches
        or any(name and name not in weights for name in op.inputs)
    ):
        return None
    operands = [weights[name] if name else None for name in op.inputs]
    budget = max(_FREE_BYTES, sum(t.nbytes for t in operands if t is not None))
    try:
        shapes = attempt(op, [None if t is None else meta_like(t) for t in operands])
        if sum(tensor.nbytes for tensor in shapes) > budget:
            return None
        results = attempt(op, operands, "cpu")
    except InvalidRequest:
        return None  # it fails, or its shape depends on content: run time will tell
    return tuple(result.contiguous().clone() for result in results)
