"""Units on integers that take in the sum or the change of grid after them.

    unit(conv) ─> unit(add, s) ─> ...          unit(conv, rounded, plus s) ─> ...
    unit(conv) ─> unit(identity) ─> cat        unit(conv, rounded, on the grid of cat) ─> cat
    unit(global average) ─> flatten            unit(mean of two axes)

The rounding in between stays: results are those of the parts. Sums only where the other summand is
computed before the unit could start anyway, as in engine/passes/fusion.py.
"""

import dataclasses
from functools import partial

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.families.quantised_unit import IDENTITY, KIND, Parts, QuantisedUnit
from braid.engine.ops.kinds import WITH_SUM
from braid.engine.passes.matching import Upstream, rewrite_static

_FLATTENING = frozenset({"braid.reshape", "braid.flatten", "braid.squeeze"})


def join_units(graph: OpGraph) -> OpGraph:
    return rewrite_static(graph, {}, partial(_flattened, graph), _joined)


def _joined(op: Operator, upstream: Upstream) -> Operator | None:
    """A unit that makes one of the values of ``op`` with ``op`` in it, if that does no harm."""
    values = QuantisedUnit.read(op).parts.values if op.kind == KIND else ()
    for position, data in enumerate(values):
        producer = upstream.only_read(data, KIND)
        if producer is None:
            continue
        if not all(upstream.is_ready(value, producer) for value in values if value != data):
            continue
        if (unit := _both(producer, op, position)) is not None:
            return unit.operator(producer.name, op.outputs)
    return None


def _flattened(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    pool = upstream.only_read(op.inputs[0], KIND) if op.kind in _FLATTENING else None
    unit = QuantisedUnit.read(pool) if pool is not None else None
    if pool is None or unit is None or unit.unit != "braid.global_avg_pool":
        return None
    extents, left = graph.spec(op.inputs[0]).shape, graph.spec(op.outputs[0]).shape
    if len(extents) != 4 or left != extents[:2]:
        return None
    attributes: dict[str, Literal] = {"dims": [2, 3], "keepdim": False}
    mean = dataclasses.replace(unit, unit="aten.mean", attributes=attributes)
    return mean.operator(pool.name, op.outputs)


def _both(producer: Operator, op: Operator, position: int) -> QuantisedUnit | None:
    first, last = QuantisedUnit.read(producer), QuantisedUnit.read(op)
    if first.unit not in WITH_SUM or first.parts.middle is not None:
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
