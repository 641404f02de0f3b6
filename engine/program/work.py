"""Rough cost model of one unit: multiply-adds, bytes moved, a call's overhead.

Only balances streams over threads, where it must be the same in every process that lays out the
same plan, and orders launches, so it is computed and not measured. Which plan is faster is always
measured.
"""

import math
from dataclasses import replace

from braid.core.graph import Operator, OpGraph
from braid.core.measurement import UnitProfile
from braid.engine.ops.families.attention import ATTENTION, ViewedAttention
from braid.engine.ops.families.quantised_unit import KIND

_FLOP_PER_US = 50_000.0  # one thread of a server CPU, fp32
_BYTES_PER_US = 10_000.0
_CALL_US = 5.0


def estimated_profile(
    unit: Operator, graph: OpGraph, flop_per_byte: float = _FLOP_PER_US / _BYTES_PER_US
) -> UnitProfile:
    """Bytes moved, as demand; ``flop_per_byte``: what the device computes while it moves one."""
    moved = _moved_bytes(unit, graph)
    return UnitProfile(float(moved), moved * flop_per_byte >= estimated_flop(unit, graph))


def estimated_work_us(unit: Operator, graph: OpGraph) -> float:
    """Microseconds that a unit takes on one thread, from the static shapes alone."""
    moved = _moved_bytes(unit, graph)
    return _CALL_US + moved / _BYTES_PER_US + estimated_flop(unit, graph) / _FLOP_PER_US


def _moved_bytes(unit: Operator, graph: OpGraph) -> int:
    specs = [graph.spec(name) for name in (*unit.inputs, *unit.outputs) if name]
    return sum(spec.size_bytes for spec in specs)


def estimated_flop(unit: Operator, graph: OpGraph) -> float:
    """0 for kinds that only move data; an operation on 8-bit integers counts a quarter."""
    if unit.kind == KIND:
        return estimated_flop(replace(unit, kind=str(unit.attributes["unit"])), graph) / 4
    result = graph.spec(unit.outputs[0])
    if unit.kind in ("aten.convolution", "braid.convolution_add"):
        taps = graph.spec(unit.inputs[1]).shape[1:]
        return 2.0 * result.elements * math.prod(int(tap) for tap in taps)
    if unit.kind == ATTENTION:
        how = ViewedAttention(**unit.attributes)  # type: ignore[arg-type]
        scores = how.batches * how.heads * how.queries * how.keys
        return 2.0 * scores * (how.width + how.value_width)
    source = graph.spec(unit.inputs[0]) if unit.inputs else result
    if unit.kind in ("aten.linear", "braid.linear_add", "aten.matmul") and source.shape:
        return 2.0 * result.elements * int(source.shape[-1])
    return 0.0
