"""Units on integers that take in the sum or the change of grid after them.

    unit(conv) ─> unit(add, s) ─> ...          unit(conv, rounded, plus s) ─> ...
    unit(conv) ─> unit(identity) ─> cat        unit(conv, rounded, on the grid of cat) ─> cat
    unit(global average) ─> flatten            unit(mean of two axes)

The rounding in between stays: results are those of the parts. Sums only where the other summand is
computed before the unit could start anyway, as in engine/passes/fusion/residual.py.
"""

from __future__ import annotations

import dataclasses

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.arithmetic.quantised_unit import (
    IDENTITY,
    KIND,
    Parts,
    QuantisedUnit,
)
from braid.engine.ops.kinds import WITH_SUM
from braid.engine.passes.merging import Merging

_FLATTENING = frozenset({"braid.reshape", "braid.flatten", "braid.squeeze"})


def join_units(graph: OpGraph) -> OpGraph:
    """Join units of a static graph; they keep the names of their convolutions."""
    merging = Merging(graph)
    for index, op in merging.walk():
        found = merging.only_read(op.inputs[0]) if op.kind in _FLATTENING else None
        flat = _flattened(found[1], op, graph) if found is not None else None
        if found is not None and flat is not None:
            merging.merge(index, found[0], flat)
        if op.kind == KIND:
            _join(merging, index, op)
    return merging.graph()


def _join(merging: Merging, index: int, op: Operator) -> None:
    """Merge a unit into one that makes one of its values, if that does no harm."""
    last = QuantisedUnit.read(op)
    for position, data in enumerate(last.parts.values):
        found = merging.only_read(data)
        if found is None:
            continue
        root, producer = found
        others = [value for at, value in enumerate(last.parts.values) if at != position]
        if not all(merging.is_ready(value, root) for value in others):
            continue
        if (joined := _joined(producer, last, position)) is not None:
            merging.merge(index, root, joined.operator(producer.name, op.outputs))
            break


def _flattened(pool: Operator, op: Operator, graph: OpGraph) -> Operator | None:
    """The average ``pool`` without the axes that ``op`` drops; None if they are something else."""
    unit = QuantisedUnit.read(pool) if pool.kind == KIND else None
    extents, left = graph.spec(op.inputs[0]).shape, graph.spec(op.outputs[0]).shape
    if unit is None or unit.unit != "braid.global_avg_pool":
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
