"""Elementwise units on oneDNN primitives, which read and write numbers in any order.

A value of four axes lies as images where a unit on images makes or reads it, also through other
elementwise units. Where only elementwise units touch it, it is dense, as requests bring it and
answers want it: of the 442 us that doubling 600 KB took in service, reordering took 307.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch

from braid.core.graph import Operator, OpGraph
from braid.engine.cpu.kernels.epilogues import POINTWISE, post_op
from braid.engine.cpu.kernels.unit_binding import UnitBinding
from braid.engine.onednn import floats
from braid.engine.onednn.library import ADD, DTYPES, POST_OP, SCALES, SRC, SRC_1, PostOp
from braid.engine.onednn.recipe import Buffer
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.families.quantised_unit import DEQUANTISE, IDENTITY, QUANTISE
from braid.engine.ops.kinds import EPILOGUE, WEIGHTED_SUM
from braid.engine.passes.fusion import weights_of
from braid.engine.program.kernel import Kernel

_KINDS = frozenset(
    {"aten.add", "aten.mul", WEIGHTED_SUM, "braid.cast", QUANTISE, DEQUANTISE, *POINTWISE}
)


def summed(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    left, right = unit.inputs
    shape = binding.shape(unit.outputs[0])
    same = binding.is_plain(right) and binding.shape(left) == binding.shape(right) == shape
    if not same or set(unit.attributes) - {EPILOGUE}:
        return None
    describe = partial(floats.add, binding.library, math.prod(shape), steps)
    arguments, buffer = {SRC: 0, SRC_1: 1}, _buffer(unit, binding)
    return binding.kernel(describe, arguments, buffer, needs_finite=bool(steps))


def weighted(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Kernel of a weighted sum: one pass, in which each step carries a quotient of two weights.

    ``w0 a + w1 b + w2 c`` is ``((w0/w1 a + b) w1/w2 + c) w2``: oneDNN adds nothing scaled but the
    first operands.
    """
    shape = binding.shape(unit.outputs[0])
    if not all(binding.is_plain(term) and binding.shape(term) == shape for term in unit.inputs):
        return None
    weights = weights_of(unit)
    first, *ratios = [weight / following for weight, following in pairwise(weights)]
    chain: list[PostOp] = []
    arguments = {SRC: 0, SRC_1: 1}
    for position, ratio in enumerate(ratios, start=2):
        chain += [("linear", ratio, 0.0), (ADD, 0.0, 0.0)]
        arguments[POST_OP * len(chain) | SRC_1] = position
    chain += [("linear", weights[-1], 0.0), *steps]
    describe = partial(floats.add, binding.library, math.prod(shape), chain, {SRC: 0})
    fixed = {SCALES | SRC: torch.tensor([first])}
    buffer = _buffer(unit, binding)
    return binding.kernel(describe, arguments, buffer, fixed=fixed, needs_finite=True)


def pointwise(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    attributes = {name: value for name, value in unit.attributes.items() if name != EPILOGUE}
    first = post_op(unit.kind, attributes)
    shape = binding.shape(unit.outputs[0])
    if first is None or len(unit.inputs) != 1 or binding.shape(unit.inputs[0]) != shape:
        return None
    describe = partial(floats.elementwise, binding.library, math.prod(shape), first, steps)
    return binding.kernel(describe, {SRC: 0}, _buffer(unit, binding), needs_finite=True)


def scaled(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    if set(unit.attributes) - {EPILOGUE}:
        return None
    shape = binding.shape(unit.outputs[0])
    for position, factor in ((0, unit.inputs[1]), (1, unit.inputs[0])):
        number, data = binding.constant(factor), unit.inputs[position]
        if number is None or number.numel() != 1 or not binding.is_plain(data):
            continue
        if binding.shape(data) != shape:
            continue
        scale: PostOp = "linear", float(number), 0.0
        describe = partial(floats.elementwise, binding.library, math.prod(shape), scale, steps)
        buffer = _buffer(unit, binding)
        return binding.kernel(describe, {SRC: position}, buffer, needs_finite=bool(steps))
    return None


def cast(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    source = torch_dtype(binding.graph.spec(unit.inputs[0]).dtype)
    shape = binding.shape(unit.outputs[0])
    if steps or source not in DTYPES or source == binding.library.dtype:
        return None
    describe = partial(floats.cast, binding.library, math.prod(shape), source)
    return binding.kernel(describe, {SRC: 0}, _buffer(unit, binding))


def _buffer(unit: Operator, binding: UnitBinding) -> Buffer:
    (result,) = unit.outputs
    shape = binding.shape(result)
    return binding.buffer(shape, images=len(shape) == 4 and result in binding.images)


def image_values(graph: OpGraph) -> frozenset[str]:
    """Values that a unit of another kind makes or reads, also behind elementwise units."""
    users: dict[str, list[int]] = {}
    moving = [_moving(unit, graph) for unit in graph.operators]
    for index, values in enumerate(moving):
        for value in values:
            users.setdefault(value, []).append(index)
    images = set[str]()
    left = [index for index, unit in enumerate(graph.operators) if not _is_elementwise(unit)]
    queued = set(left)
    while left:
        for value in moving[left.pop()] - images:
            images.add(value)
            further = [index for index in users[value] if index not in queued]
            queued.update(further)
            left += further
    return frozenset(images)


def _is_elementwise(unit: Operator) -> bool:
    """Whether a unit reads and writes numbers in any order."""
    return unit.kind in _KINDS or unit.attributes.get("unit") in ("aten.add", IDENTITY)


def _moving(unit: Operator, graph: OpGraph) -> set[str]:
    """Values that a unit reads or makes, without constants."""
    return {*unit.inputs, *unit.outputs} - graph.constants.keys() - {""}
