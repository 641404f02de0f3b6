"""Where the batch is, and templates whose file says "batch 1" made to take any batch.

    inputs [1, 3, 224, 224]  ──> [batch, 3, 224, 224]       guessed, then verified (verify.py)
    Reshape to [1, 1000]     ──> [0, 1000]: copy the extent
    Reshape to [12, 64, 64]  ──> [-1, 64, 64]: infer it

Every repair computes the same at the extents the file was made for, whatever the guess is worth.
"""

import dataclasses
from collections.abc import Mapping

from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import BATCH, TensorType
from braid.engine.passes.body import map_operators


def guess_batch(template: OpGraph) -> OpGraph | None:
    """The template with ``batch`` as dimension 0 of every input; None if it cannot be.

    It can be if dimension 0 of each input is open or 1, and names no other extent.
    """
    leading: set[str] = set()
    others: set[str] = set()
    for spec in template.inputs.values():
        if not spec.shape or not (isinstance(spec.shape[0], str) or spec.shape[0] == 1):
            return None
        leading.update(dim for dim in spec.shape[:1] if isinstance(dim, str))
        others.update(dim for dim in spec.shape[1:] if isinstance(dim, str))
    if leading & others or not template.inputs:
        return None
    renamed = without_batch_symbol(template)
    return dataclasses.replace(
        renamed,
        inputs={
            name: TensorType(spec.dtype, (BATCH, *spec.shape[1:]))
            for name, spec in renamed.inputs.items()
        },
    )


def without_batch_symbol(template: OpGraph) -> OpGraph:
    """The template with another name for extents that the file happens to call ``batch``."""
    taken = {dim for spec in template.inputs.values() for dim in spec.shape if isinstance(dim, str)}
    name = BATCH
    while name in taken or name == BATCH:
        name += "_"

    def renamed(table: Mapping[str, TensorType]) -> dict[str, TensorType]:
        return {
            value: TensorType(spec.dtype, tuple(name if d == BATCH else d for d in spec.shape))
            for value, spec in table.items()
        }

    return dataclasses.replace(
        template, inputs=renamed(template.inputs), specs=renamed(template.specs)
    )


def repair_reshapes(template: OpGraph, at_batch_1: Mapping[str, TensorType]) -> OpGraph:
    """Let constant Reshape targets follow the batch where batch 1 was written into them."""
    return map_operators(template, lambda op: _repaired(op, at_batch_1))


def _repaired(op: Operator, at_batch_1: Mapping[str, TensorType]) -> Operator:
    target = op.attributes.get("shape")
    if op.kind != "braid.reshape" or not isinstance(target, list) or not target:
        return op
    if op.attributes.get("allow_zero") or target[0] in (0, -1):
        return op
    source = at_batch_1.get(op.inputs[0])
    first: Literal
    if -1 not in target:
        first = -1
    elif target[0] == 1 and source is not None and source.shape[:1] == (1,):
        first = 0
    else:
        return op
    return dataclasses.replace(op, attributes={**op.attributes, "shape": [first, *target[1:]]})
