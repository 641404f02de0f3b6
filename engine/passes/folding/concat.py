"""Flattening of concatenations: one copy of each part instead of several.

cat(cat(a, b), c)   becomes   cat(a, b, c)      same axis, the inner one read once
"""

from __future__ import annotations

import dataclasses

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.body import Weights
from braid.engine.passes.matching import Upstream, rewrite

_CAT = "aten.cat"


def flatten_concats(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Join nested concatenations along one axis. The inner ones are left for dead code removal."""
    return rewrite(graph, weights, _flattened)


def _flattened(op: Operator, upstream: Upstream) -> Operator | None:
    if op.kind != _CAT or EPILOGUE in op.attributes:
        return None
    parts: list[str] = []
    for value in op.inputs:
        inner = upstream.only_read(value, _CAT)
        parts += inner.inputs if inner and inner.attributes == op.attributes else (value,)
    return dataclasses.replace(op, inputs=tuple(parts))
