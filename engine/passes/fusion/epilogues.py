"""Fusion: an operator and the activations after it become one schedule unit.

    conv ──> add(bias, folded) ──> relu       conv {epilogue: [["aten.relu"]]}

The scheduler then decides about units that are worth a kernel launch.
"""

from __future__ import annotations

import dataclasses

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE, OPS
from braid.engine.passes.body import Weights, scalar
from braid.engine.passes.folding.affine import scale_and_shift
from braid.engine.passes.matching import Upstream, rewrite

_ROOTS = frozenset(
    {
        *("aten.convolution", "braid.conv_transpose_to", "aten.linear", "aten.matmul"),
        *("aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum"),
        *("aten.batch_norm", "aten.layer_norm", "braid.instance_norm", "braid.group_norm"),
        *("braid.rms_norm", "braid.prelu"),
    }
)


def fuse_epilogues(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Fuse chains of unary pointwise operators into the operator that feeds them.

    Only where the value in between has one reader and is no output of the graph. A product,
    sum or quotient with a floating-point number counts as unary.
    """
    return rewrite(graph, weights, _fused)


def _fused(op: Operator, upstream: Upstream) -> Operator | None:
    """The root of a chain with another step; it keeps its name and place."""
    operand, step = _as_step(op, upstream.weights) or ("", [])
    root = upstream.only_read(operand)
    if root is None or root.branches or len(root.outputs) != 1:
        return None
    if root.kind not in _ROOTS and not OPS[root.kind].pointwise:
        return None
    before = root.attributes.get(EPILOGUE, [])
    assert isinstance(before, list)
    attributes = {**root.attributes, EPILOGUE: [*before, step]}
    return dataclasses.replace(root, outputs=op.outputs[:1], attributes=attributes)


def _as_step(op: Operator, weights: Weights) -> tuple[str, list[Literal]] | None:
    """(operand, epilogue step) of an operator that is unary and pointwise; else None."""
    if op.host or op.branches or EPILOGUE in op.attributes:
        return None
    operands = [name for name in op.inputs if name]
    if op.kind in OPS and OPS[op.kind].pointwise and len(operands) == 1 and len(op.outputs) == 1:
        pairs = [part for pair in op.attributes.items() for part in pair]
        return operands[0], [op.kind, *pairs]
    return _scale_or_shift(op, weights)


def _scale_or_shift(op: Operator, weights: Weights) -> tuple[str, list[Literal]] | None:
    """Arithmetic with a number, as ``braid.affine``."""
    if len(op.inputs) != 2 or set(op.attributes) - {"truncate"}:
        return None
    for position, other in ((0, op.inputs[1]), (1, op.inputs[0])):
        number = scalar(weights, other)
        if number is None or (number == 0 and op.kind == "aten.div"):
            continue
        if (affine := scale_and_shift(op.kind, position, number, 1.0)) is not None:
            return op.inputs[position], ["braid.affine", "scale", affine[0], "shift", affine[1]]
    return None
