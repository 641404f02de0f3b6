"""Units on integers that take in the sum or the change of grid after them.

    unit(conv) ─> unit(add, s) ─> ...          unit(conv, rounded, plus s) ─> ...
    unit(conv) ─> unit(identity) ─> cat        unit(conv, rounded, on the grid of cat) ─> cat
    unit(global average) ─> flatten            unit(mean of two axes)

The rounding in between stays: results are those of the parts. Sums only where the other summand is
computed before the unit could start anyway, as in engine/passes/fusion/residual.py.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.arithmetic.quantised_unit import (
    IDENTITY,
    KIND,
    WITH_SUM,
    Parts,
    QuantisedUnit,
)

_FLATTENING = frozenset({"braid.reshape", "braid.flatten", "braid.squeeze"})


def join_units(graph: OpGraph) -> OpGraph:
    """Join units of a static graph; they keep the names of their convolutions."""
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
        if op.kind in _FLATTENING and reads[op.inputs[0]] == 1:
            root = made_by.get(op.inputs[0], -1)
            flat = _flattened(operators[root], op, graph) if root >= 0 else None
            if flat is not None:
                operators[root], operators[index] = flat, None
                made_by[op.outputs[0]] = root
                ancestors[index] = ancestors[root]
        if op.kind != KIND:
            continue
        last = QuantisedUnit.read(op)
        for position, data in enumerate(last.parts.values):
            root = made_by.get(data, -1)
            producer = operators[root] if root >= 0 and reads[data] == 1 else None
            others = [made_by.get(v) for i, v in enumerate(last.parts.values) if i != position]
            ready = all(maker is None or ancestors[root] >> maker & 1 for maker in others)
            joined = _joined(producer, last, position) if producer and ready else None
            if producer is not None and joined is not None:
                operators[root] = joined.operator(producer.name, op.outputs)
                operators[index] = None
                made_by[op.outputs[0]] = root
                ancestors[index] = ancestors[root]
                break
    kept = tuple(op for op in operators if op is not None)
    made = {name for op in kept for name in op.outputs}
    specs = {name: spec for name, spec in graph.specs.items() if name in made}
    return dataclasses.replace(graph, operators=kept, specs=specs)


def _flattened(pool: Operator | None, op: Operator, graph: OpGraph) -> Operator | None:
    """The average ``pool`` without the axes that ``op`` drops; None if they are something else."""
    unit = QuantisedUnit.read(pool) if pool is not None and pool.kind == KIND else None
    extents, left = graph.spec(op.inputs[0]).shape, graph.spec(op.outputs[0]).shape
    if pool is None or unit is None or unit.unit != "braid.global_avg_pool":
        return None
    if len(extents) != 4 or left != extents[:2]:
        return None
    attributes: dict[str, Literal] = {"dims": [2, 3], "keepdim": False}
    mean = dataclasses.replace(unit, unit="aten.mean", attributes=attributes)
    return mean.operator(pool.name, op.outputs)


def _joined(producer: Operator, last: QuantisedUnit, position: int) -> QuantisedUnit | None:
    """The unit that does what ``producer`` and then ``last`` do; None if there is none."""
    first = QuantisedUnit.read(producer) if producer.kind == KIND else None
    if first is None or first.unit not in WITH_SUM or first.parts.middle is not None:
        return None
    if first.parts.result is None or last.unit not in (IDENTITY, "aten.add"):
        return None
    values, grids, kind = first.parts.values, first.parts.grids, first.unit
    if last.unit == "aten.add":
        other = 1 - position
        values = (*(*values, "")[:3], last.parts.values[other])
        grids = (*(*grids, None)[:3], last.parts.grids[other])
        kind = WITH_SUM[kind]
    parts = Parts(values, grids, first.parts.result, last.parts.result)
    return QuantisedUnit(kind, parts, first.after, last.after, first.attributes)
