"""Fusion: an operator and the activations after it become one schedule unit.

    conv ──> add(bias, folded) ──> relu       conv {epilogue: [["aten.relu"]]}

The scheduler then decides about units that are worth a kernel launch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE, OPS
from braid.engine.passes.body import Body, Weights, everywhere, scalar

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
    return everywhere(_fuse, graph, weights)


def _fuse(body: Body, weights: dict[str, Tensor]) -> Body:
    reads = body.reads()
    kept: dict[str, Operator] = {}  # by name, in order
    made: dict[str, Operator] = {}
    for op in body.operators:
        step = _as_step(op, weights)
        root = made.get(step[0]) if step is not None else None
        if step is not None and root is not None and _takes_epilogue(root, reads):
            op = _appended(root, step[1], op.outputs[0])
        kept[op.name] = op  # a fused one keeps its root's name and place
        made[op.outputs[0]] = op
    return dataclasses.replace(body, operators=tuple(kept.values()))


def _takes_epilogue(root: Operator, reads: Mapping[str, int]) -> bool:
    if root.branches or len(root.outputs) != 1 or reads[root.outputs[0]] != 1:
        return False
    return root.kind in _ROOTS or OPS[root.kind].pointwise


def _appended(root: Operator, step: list[Literal], output: str) -> Operator:
    before = root.attributes.get(EPILOGUE, [])
    assert isinstance(before, list)
    return dataclasses.replace(
        root,
        outputs=(output,),
        attributes={**root.attributes, EPILOGUE: [*before, step]},
    )


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
    left, right = op.inputs
    number, on_right = scalar(weights, right), True
    if number is None:
        number, on_right = scalar(weights, left), False
    if number is None:
        return None
    match op.kind, on_right:
        case "aten.mul", _:
            scale, shift = number, 0.0
        case "aten.add", _:
            scale, shift = 1.0, number
        case "aten.sub", True:
            scale, shift = 1.0, -number
        case "aten.sub", False:
            scale, shift = -1.0, number
        case "aten.div", True if number != 0:
            scale, shift = 1 / number, 0.0
        case _:
            return None
    operand = left if on_right else right
    return operand, ["braid.affine", "scale", scale, "shift", shift]
