"""Residual sums fused into the convolution or linear layer before them, in a static graph.

    x ─> conv1 ─> relu ─> conv2 ─> add ─> relu        x ─> conv1 ─> relu ─> conv2 + add + relu
    └──────────────────────────────┘                  └──────────────────────┘

Only where the other summand is computed before the fused unit could start anyway (one of its
ancestors makes it), so that fusing never takes away a unit that could run beside another.
"""

from __future__ import annotations

import dataclasses

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE, WITH_SUM
from braid.engine.passes.merging import Merging


def fuse_residuals(graph: OpGraph) -> OpGraph:
    """Fuse each sum that allows it; the units keep the names of their convolutions."""
    merging = Merging(graph)
    for index, op in merging.walk():
        if not is_sum(op, graph):
            continue
        for data, other in (op.inputs, op.inputs[::-1]):
            found = merging.only_read(data)
            if found is None or not merging.is_ready(other, found[0]):
                continue
            root, producer = found
            plain = producer.kind in WITH_SUM and EPILOGUE not in producer.attributes
            if plain and not producer.attributes.get("transposed"):
                merging.merge(index, root, _with_sum(producer, op, other))
                break
    return merging.graph()


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
