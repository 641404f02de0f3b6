"""Units on integers without weights: sums, changes of grid, averages, and both conversions."""

import math

from braid.core.attributes import wholes
from braid.core.graph import WEIGHTS, Operator
from braid.engine.cpu.kernels.integers.rounding import Chain, Steps, rounded, steps_of_grid
from braid.engine.cpu.kernels.integers.weighted import types_of
from braid.engine.cpu.kernels.unit_binding import UnitBinding, number
from braid.engine.onednn import integers
from braid.engine.onednn.integers import AverageWindow, Types
from braid.engine.onednn.library import POST_OP, SCALES, SRC, SRC_1, ZERO_POINT, PostOp, Primitive
from braid.engine.onednn.recipe import Buffer
from braid.engine.ops.families.quantised_unit import Grid, QuantisedUnit
from braid.engine.program.kernel import Kernel


def summed(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Kernel | None:
    values, given = read.parts.values, read.attributes.get(WEIGHTS)
    weights = given if isinstance(given, list) else [1.0] * len(values)
    grids = [
        Steps(steps.scale * float(str(weight)), steps.zero)
        for steps, weight in zip(_grids(read, binding), weights, strict=True)
    ]
    dtypes = [binding.dtype(value) for value in values]
    if len(set(dtypes[1:])) > 1:
        return None  # all that is added has one description
    offset = sum(grid.scale * grid.zero for grid in grids[:2])
    chain, arguments = Chain(1.0, offset, is_free=False), {SRC: 0, SRC_1: 1}
    for position, grid in enumerate(grids[2:], start=2):
        arguments[POST_OP * (chain.add(grid) + 1) | SRC_1] = position
    rounding = rounded(read, unit.outputs[0], binding, chain)
    if rounding is None:
        return None
    types = Types(dtypes[0], binding.dtype(unit.outputs[0]), dtypes[1])
    elements, library = math.prod(binding.shape(unit.outputs[0])), binding.library

    def describe() -> Primitive:
        return integers.add(library, types, elements, rounding.chain.post_ops)

    fixed = {SCALES | SRC: number(grids[0].scale), SCALES | SRC_1: number(grids[1].scale)}
    return binding.kernel(describe, arguments, binding.result(unit.outputs[0]), fixed=fixed)


def _grids(read: QuantisedUnit, binding: UnitBinding) -> list[Steps]:
    return [steps_of_grid(grid, binding) for grid in read.parts.grids if grid is not None]


def regridded(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Kernel | None:
    chain = _after_integers(unit, read, binding)
    if chain is None:
        return None
    types = types_of(unit, read, binding)
    elements, library = math.prod(binding.shape(unit.outputs[0])), binding.library

    def describe() -> Primitive:
        return integers.with_number(library, types, elements, chain, divide=False)

    fixed, buffer = {SRC_1: number(0.0)}, binding.result(unit.outputs[0])
    return binding.kernel(describe, {SRC: 0}, buffer, fixed=fixed)


def averaged(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Kernel | None:
    chain, source = _after_integers(unit, read, binding), binding.shape(unit.inputs[0])
    result = binding.shape(unit.outputs[0])
    window = _windows(read, source, binding)
    if chain is None or window is None:
        return None
    pooled = result if len(result) == 4 else (*source[:2], 1, 1)
    types, library = types_of(unit, read, binding), binding.library

    def describe() -> Primitive:
        return integers.average(library, types, (source, pooled), window, chain)

    seen_as = None if result == pooled else result
    buffer = Buffer(pooled, images=True, seen_as=seen_as, dtype=types.result)
    return binding.kernel(describe, {SRC: 0}, buffer)


def _windows(
    read: QuantisedUnit, source: tuple[int, ...], binding: UnitBinding
) -> AverageWindow | None:
    given = read.attributes
    if len(source) != 4:
        return None
    if read.unit != "braid.avg_pool":
        axes = wholes(given.get("dims") or [])
        if read.unit == "aten.mean" and sorted(axis % 4 for axis in axes) != [2, 3]:
            return None
        return AverageWindow(list(source[2:]), [1, 1])
    if given.get("ceil_mode") or isinstance(given["pads"], str):
        return None
    pads, kernel = wholes(given["pads"]), wholes(given["kernel"])
    counts, grid = bool(given.get("count_padding")), read.parts.grids[0]
    assert grid is not None
    if set(wholes(given["dilation"])) != {1} or any(
        pad >= extent for pad, extent in zip(pads, [*kernel, *kernel], strict=True)
    ):
        return None
    if counts and any(pads) and steps_of_grid(grid, binding).zero:
        return None  # padding is the zero point, not the integer 0
    return AverageWindow(kernel, wholes(given["stride"]), pads[:2], pads[2:], counts)


def _after_integers(
    unit: Operator, read: QuantisedUnit, binding: UnitBinding
) -> list[PostOp] | None:
    """Post-operations behind integers on the grid of the first operand."""
    grid = read.parts.grids[0]
    assert grid is not None
    source = steps_of_grid(grid, binding)
    chain = Chain(1 / source.scale, source.zero, is_free=False)
    rounding = rounded(read, unit.outputs[0], binding, chain)
    return None if rounding is None else rounding.chain.post_ops


def quantised(unit: Operator, binding: UnitBinding) -> Kernel | None:
    data, scale, zero = (*unit.inputs, "")[:3]
    grid = _whole(unit, scale, zero, binding)
    result = binding.dtype(unit.outputs[0])
    is_plain = binding.dtype(data) == "FP32" and result in ("UINT8", "INT8")
    if grid is None or not is_plain or 0 in binding.shape(data):
        return None
    steps = steps_of_grid(grid, binding)
    post_ops: list[PostOp] = []
    if steps.zero:  # rounded before it is added: half to even
        post_ops = [("round", 0.0, 0.0), ("linear", 1.0, steps.zero)]
    types, elements = Types("FP32", result, result), math.prod(binding.shape(data))

    def describe() -> Primitive:
        return integers.with_number(binding.library, types, elements, post_ops, divide=True)

    fixed, buffer = {SRC_1: number(steps.scale)}, binding.result(unit.outputs[0])
    return binding.kernel(describe, {SRC: 0}, buffer, fixed=fixed, needs_finite=True)


def dequantised(unit: Operator, binding: UnitBinding) -> Kernel | None:
    data, scale, zero = (*unit.inputs, "")[:3]
    grid, source = _whole(unit, scale, zero, binding), binding.dtype(data)
    is_plain = binding.dtype(unit.outputs[0]) == "FP32" and 0 not in binding.shape(data)
    if grid is None or not is_plain or source not in ("UINT8", "INT8"):
        return None
    steps, elements = steps_of_grid(grid, binding), math.prod(binding.shape(data))

    def describe() -> Primitive:
        return integers.dequantise(binding.library, source, elements)

    fixed = {
        SCALES | SRC: number(steps.scale),
        ZERO_POINT | SRC: number(steps.zero, "INT32"),
    }
    return binding.kernel(describe, {SRC: 0}, binding.result(unit.outputs[0]), fixed=fixed)


def _whole(unit: Operator, scale: str, zero: str, binding: UnitBinding) -> Grid[str] | None:
    for name in filter(None, (scale, zero)):
        constant = binding.constants.get(name)
        if constant is None or constant.size != 1:
            return None
    is_fp32 = binding.graph.spec(scale).dtype == "FP32"
    return Grid(scale, zero) if is_fp32 and not unit.attributes.get("block") else None
