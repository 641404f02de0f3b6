"""Flattening of concatenations: one copy of each part instead of several.

cat(cat(a, b), c)   becomes   cat(a, b, c)      same axis, the inner one read once
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.passes.body import Body, Weights, everywhere

_CAT = "aten.cat"


def flatten_concats(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Join nested concatenations along one axis. The inner ones are left for dead code removal."""
    return everywhere(_flatten, graph, weights)


def _flatten(body: Body, weights: dict[str, Tensor]) -> Body:
    reads, made = body.reads(), body.makers()
    done = []
    for op in body.operators:
        if op.kind == _CAT and not op.attributes.get("epilogue"):
            parts: list[str] = []
            for value in op.inputs:
                inner = made.get(value)
                nested = inner is not None and _joins(inner, op) and reads[value] == 1
                parts += inner.inputs if nested and inner is not None else (value,)
            if len(parts) > len(op.inputs):
                op = dataclasses.replace(op, inputs=tuple(parts))
                made[op.outputs[0]] = op
        done.append(op)
    return dataclasses.replace(body, operators=tuple(done))


def _joins(inner: Operator, outer: Operator) -> bool:
    return inner.kind == _CAT and dict(inner.attributes) == dict(outer.attributes)
