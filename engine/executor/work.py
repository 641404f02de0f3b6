"""A rough cost model of one unit: multiply-adds, bytes moved, a call's overhead.

Only balances streams over threads, where it must be the same in every process that lays out the
same plan, so it is computed and not measured. Which plan is faster is always measured.
"""

from __future__ import annotations

import math

from core.graph import Operator, OpGraph

_FLOP_PER_US = 50_000.0  # one thread of a server CPU, fp32
_BYTES_PER_US = 10_000.0
_CALL_US = 5.0


def estimated_work_us(unit: Operator, graph: OpGraph) -> float:
    """Microseconds on one thread, from the static shapes alone."""
    specs = [graph.spec(name) for name in (*unit.inputs, *unit.outputs) if name]
    moved = sum(spec.size_bytes for spec in specs)
    return _CALL_US + moved / _BYTES_PER_US + _flop(unit, graph) / _FLOP_PER_US


def _flop(unit: Operator, graph: OpGraph) -> float:
    """Floating-point operations of the dense kinds, 0 for those that only move data."""
    result = graph.spec(unit.outputs[0])
    if unit.kind == "aten.convolution":
        taps = graph.spec(unit.inputs[1]).shape[1:]
        return 2.0 * result.elements * math.prod(int(tap) for tap in taps)
    if unit.kind in ("aten.linear", "aten.matmul") and graph.spec(unit.inputs[0]).shape:
        return 2.0 * result.elements * int(graph.spec(unit.inputs[0]).shape[-1])
    return 0.0
