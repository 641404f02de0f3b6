"""Residual sums fused into the convolution or linear layer before them, in a static graph.

    x ─> conv1 ─> relu ─> conv2 ─> add ─> relu        x ─> conv1 ─> relu ─> conv2 + add + relu
    └──────────────────────────────┘                  └──────────────────────┘

Only where the other summand is computed before the fused unit could start anyway (one of its
ancestors makes it), so that fusing never takes away a unit that could run beside another.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE

_WITH_SUM = {"aten.convolution": "braid.convolution_add", "aten.linear": "braid.linear_add"}


def fuse_residuals(graph: OpGraph) -> OpGraph:
    """Fuse each sum that allows it; the units keep the names of their convolutions."""
    reads = Counter(name for op in graph.operators for name in op.inputs)
    reads.update(graph.outputs.values())
    made_by = graph.producers()
    ancestors: list[int] = []  # of each operator, as a bit set
    operators: list[Operator | None] = list(graph.operators)
    for index, op in enumerate(graph.operators):
        above = 0
        for name in op.inputs:
            if name in made_by:
                above |= ancestors[made_by[name]] | 1 << made_by[name]
        ancestors.append(above)
        if not _is_sum(op, graph):
            continue
        for data, other in (op.inputs, op.inputs[::-1]):
            root = made_by.get(data, -1)
            producer = operators[root] if root >= 0 else None
            if producer is None or producer.kind not in _WITH_SUM:
                continue
            if EPILOGUE in producer.attributes or producer.attributes.get("transposed"):
                continue
            maker = made_by.get(other)
            ready = maker is None or ancestors[root] >> maker & 1
            if ready and reads[data] == 1:
                operators[root] = _with_sum(producer, op, other)
                operators[index] = None
                made_by[op.outputs[0]] = root
                # What the fused unit comes after is what its convolution came after.
                ancestors[index] = ancestors[root]
                break
    kept = tuple(op for op in operators if op is not None)
    made = {name for op in kept for name in op.outputs}
    specs = {name: spec for name, spec in graph.specs.items() if name in made}
    return dataclasses.replace(graph, operators=kept, specs=specs)


def _is_sum(op: Operator, graph: OpGraph) -> bool:
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
        kind=_WITH_SUM[producer.kind],
        inputs=(data, weight, bias, other),
        outputs=total.outputs,
        attributes={**producer.attributes, **epilogue},
    )
