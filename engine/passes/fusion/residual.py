"""Residual sums fused into the convolution or linear layer before them, in a static graph.

    x ─> conv1 ─> relu ─> conv2 ─> add ─> relu        x ─> conv1 ─> relu ─> conv2 + add + relu
    └──────────────────────────────┘                  └──────────────────────┘

Only where the other summand is computed before the fused unit could start anyway (one of its
ancestors makes it), so that fusing never takes away a unit that could run beside another.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE, WITH_SUM
from braid.engine.passes.matching import Upstream, rewrite_static


def fuse_residuals(graph: OpGraph) -> OpGraph:
    """Fuse each sum that allows it; the units keep the names of their convolutions."""
    return rewrite_static(graph, {}, partial(_fused, graph))


def _fused(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    if not is_sum(op, graph):
        return None
    for data, other in (op.inputs, op.inputs[::-1]):
        producer = upstream.only_read(data, *WITH_SUM)
        if producer is None or not upstream.is_ready(other, producer):
            continue
        if EPILOGUE not in producer.attributes and not producer.attributes.get("transposed"):
            return _with_sum(producer, op, other)
    return None


def is_sum(op: Operator, graph: OpGraph) -> bool:
    """Whether ``op`` adds two tensors of the output's shape, and does nothing but its epilogue."""
    if op.kind != "aten.add" or set(op.attributes) - {EPILOGUE}:
        return False
    left, right = op.inputs
    return left != right and graph.spec(left) == graph.spec(right) == graph.spec(op.outputs[0])


def _with_sum(producer: Operator, total: Operator, other: str) -> Operator:
    data, weight, bias = (*producer.inputs, "")[:3]
    epilogue = {name: total.attributes[name] for name in (EPILOGUE,) if name in total.attributes}
    return dataclasses.replace(
        producer,
        kind=WITH_SUM[producer.kind],
        inputs=(data, weight, bias, other),
        outputs=total.outputs,
        attributes={**producer.attributes, **epilogue},
    )
