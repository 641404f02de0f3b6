"""Weights that a quantised model keeps in integers, for devices that compute on integers.

Lowering sees every weight in floats, so that it can look at shapes and transpose. At its end,
those of convolutions and linear layers on quantised data become dequantisations of their integers:

    x ─> Q ─> DQ ─> conv(x; FP32 weight)        x ─> Q ─> DQ ─> conv(x; DQ(INT8 weight))

All others stay in floats: integers would gain nothing there.
"""

from __future__ import annotations

from braid.core.graph import Operator
from braid.engine.lowering.builder import Builder
from braid.engine.ops.arithmetic.quantised_unit import DEQUANTISE

_KINDS = frozenset({"aten.convolution", "aten.linear"})


def leave_weights_in_integers(builder: Builder) -> None:
    """Rewrite the constants of a builder that has taken all nodes."""
    dequantised = {op.outputs[0] for op in builder.operators if op.kind == DEQUANTISE}
    wanted = [
        op.inputs[1]
        for op in builder.operators
        if op.kind in _KINDS and op.inputs[0] in dequantised and op.inputs[1] in builder.quantised
    ]
    made = []
    for value in dict.fromkeys(wanted):
        integers = builder.quantised[value]
        del builder.constants[value]
        source = builder.add_constant(f"{value}/integers", integers.values)
        operands = (source, integers.scale, integers.zero)
        attributes = {"axis": integers.axis, "block": 0, "dtype": None}
        made.append(Operator(f"{value}/dequantise", DEQUANTISE, operands, (value,), attributes))
    builder.operators[:0] = made
