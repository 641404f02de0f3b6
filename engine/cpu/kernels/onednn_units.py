"""Units on oneDNN primitives: convolution, linear, pooling, concatenation and others.

    bind_directly(unit, binding) ──> Kernel, or None where oneDNN has nothing fast

Activations flow in channels_last, which oneDNN's kernels read and write without a reorder. Its
elementwise functions turn NaN into numbers (ReLU is max(x, 0)), and so does its maximum, so such
kernels say that they need finite inputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from braid.core.attributes import image_window, wholes
from braid.core.graph import Operator
from braid.core.tensor import DTYPE_BYTES
from braid.engine.cpu.kernels.element_units import bind_elements, copy_of
from braid.engine.cpu.kernels.elementwise_units import (
    COMBINING,
    cast,
    combined,
    passes,
    pointwise,
    weighted,
)
from braid.engine.cpu.kernels.epilogues import POINTWISE, post_ops
from braid.engine.cpu.kernels.native_units import NATIVE_KINDS, bind_natively
from braid.engine.cpu.kernels.recurrent_units import recurrent
from braid.engine.cpu.kernels.unit_binding import (
    VARIANT,
    UnitBinding,
    View,
    WithWeights,
    constants_of,
)
from braid.engine.cpu.kernels.view_units import VIEW_KINDS, batch_norm, resized, viewed
from braid.engine.onednn import floats
from braid.engine.onednn.library import (
    ADD,
    AVERAGE_ALL,
    AVERAGE_VALID,
    BIAS,
    DST,
    MANY,
    MAX_POOLING,
    POST_OP,
    SRC,
    SRC_1,
    WEIGHTS,
    PostOp,
    Primitive,
    Unsupported,
)
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.families.linear import same_padding
from braid.engine.ops.kinds import WEIGHTED_SUM
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import ARRAY_TYPES, dtype_of

_GLOBAL_POOL = "braid.global_avg_pool"


def bind_directly(unit: Operator, binding: UnitBinding) -> Kernel | None:
    steps = post_ops(unit)
    if steps is None or not unit.inputs:
        return None
    if unit.kind in VIEW_KINDS or _crops(unit):
        return viewed(unit, binding, steps)
    binder, kernel = _BINDERS.get(unit.kind), None
    of_its_type = {"braid.cast": unit.outputs, "aten.cat": ()}  # else the first operand, too
    plain = of_its_type.get(unit.kind, (unit.inputs[0], *unit.outputs))
    if binder is not None and all(map(binding.is_plain, plain)):
        kernel = binder(unit, binding, steps)
    on_elements = bind_elements(unit, binding)
    if on_elements is not None and steps:
        on_elements = _followed(on_elements, steps, binding)
    if kernel is None or on_elements is None:
        return kernel or on_elements
    return _either(kernel, on_elements)


def _either(first: Kernel, second: Kernel) -> Kernel:
    def make(threads: int) -> Recipe:
        try:
            recipe = first.recipe_on(threads)
        except Unsupported:
            recipe = second.recipe_on(threads)
        assert recipe is not None, "both are without the interpreter"
        return recipe

    needs_finite = first.needs_finite or second.needs_finite
    return Kernel(first.variant, recipe=make, needs_finite=needs_finite)


def _followed(kernel: Kernel, steps: Sequence[PostOp], binding: UnitBinding) -> Kernel:
    """The kernel, and functions of its result, where it lies."""

    def make(threads: int) -> Recipe:
        recipe = kernel.recipe_on(threads)
        assert recipe is not None, "of the part in C"
        (result,) = recipe.results
        after = passes(binding.library.on(result.dtype), steps, result, threads)
        return replace(recipe, actions=(*recipe.actions, *after))

    return Kernel(kernel.variant, recipe=make, needs_finite=True)


def _matmul(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Product of two values of several axes, of which the leading ones may be repeated."""
    names = (*unit.inputs, *unit.outputs)
    shapes = [binding.shape(name) for name in names]
    rank = len(shapes[2])
    if not all(map(binding.is_plain, names)) or not binding.lies_dense(unit.outputs[0]):
        return None
    if min(map(len, shapes)) < 2:
        return None
    padded = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
    describe = partial(floats.batched_matmul, binding.library, padded, steps)
    return binding.kernel(
        describe,
        {SRC: 0, WEIGHTS: 1},
        binding.buffer(shapes[2], images=False),
        needs_finite=bool(steps),
    )


def _convolution(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    data, weight_name = unit.inputs[:2]
    operands = constants_of(unit, binding)
    if operands is None or not binding.is_plain(data, 4):
        return None
    weight, bias = operands
    stride, padding, dilation, groups = image_window(unit)
    result = binding.shape(unit.outputs[0])
    grouped = weight.reshape(groups, -1, *weight.shape[1:]) if groups > 1 else weight
    after, transposed = padding[-2:], bool(unit.attributes.get("transposed"))
    if transposed:
        grouped = grouped.swapaxes(-4, -3)  # [(groups,) out, in, kh, kw]
        further = wholes(unit.attributes.get("output_padding") or [0, 0])
        after = [pad - more for pad, more in zip(padding, further, strict=True)]
        if min(after) < 0:  # oneDNN takes no negative padding
            return None
    shapes = binding.shape(data), grouped.shape, result
    fused, arguments = with_residual(unit, steps)
    of_bias = dtype_of(bias[BIAS]) if bias else None
    window = stride, dilation, padding[:2], after

    def describe() -> WithWeights:
        primitive = floats.convolution(
            binding.library, shapes, of_bias, window, fused, transposed=transposed
        )
        return primitive, f"{weight_name}^T" if transposed else weight_name, grouped

    buffer = binding.buffer(result, images=True)
    return binding.kernel(describe, arguments, buffer, fixed=bias, needs_finite=bool(steps))


def _linear(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    data, weight_name = unit.inputs[:2]
    operands = constants_of(unit, binding)
    if operands is None or not binding.shape(data):
        return None
    weight, bias = operands
    *leading, n = binding.shape(unit.outputs[0])
    m, k = math.prod(leading), weight.shape[1]
    fused, arguments = with_residual(unit, steps)
    of_bias = dtype_of(bias[BIAS]) if bias else None

    def describe() -> WithWeights:
        primitive, as_is = floats.linear(binding.library, m, k, n, of_bias, fused)
        name, by = (weight_name, weight) if as_is else (f"{weight_name}^T", weight.T)
        return primitive, name, by

    buffer = binding.buffer((*leading, n), images=False)
    return binding.kernel(describe, arguments, buffer, fixed=bias, needs_finite=bool(steps))


def _pooling(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    (data,) = unit.inputs
    if steps or not binding.is_plain(data, 4):
        return None
    source, result = binding.shape(data), binding.shape(unit.outputs[0])
    kernel, stride, dilation = (
        wholes(unit.attributes[name]) for name in ("kernel", "stride", "dilation")
    )
    pairs = _pooling_pads(unit, source)
    before = [pair[0] for pair in pairs]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    after = [
        max(0, (windows - 1) * s + span - extent - first)
        for windows, s, span, extent, first in zip(
            result[2:], stride, spans, source[2:], before, strict=True
        )
    ]
    beyond = any(a > pair[1] for a, pair in zip(after, pairs, strict=True))
    counted = bool(unit.attributes.get("count_padding"))
    if any(p >= k for p, k in zip((*before, *after), (*kernel, *kernel), strict=True)):
        return None
    if unit.kind == "braid.max_pool":
        algorithm = MAX_POOLING
    elif counted and beyond:
        return None  # the last windows reach over the padding, which must not be counted there
    else:
        algorithm = AVERAGE_ALL if counted else AVERAGE_VALID

    def describe() -> Primitive:
        window = kernel, stride, dilation, before, after
        return floats.pooling(binding.library, algorithm, (source, result), window)

    is_max = algorithm == MAX_POOLING
    return binding.kernel(
        describe, {SRC: 0}, binding.buffer(result, images=True), needs_finite=is_max
    )


def _pooling_pads(unit: Operator, source: Sequence[int]) -> list[tuple[int, int]]:
    attributes, pads = unit.attributes, unit.attributes["pads"]
    if isinstance(pads, str):
        kernel, stride, dilation = (
            wholes(attributes[name]) for name in ("kernel", "stride", "dilation")
        )
        return same_padding(source[2:], kernel, stride, dilation, pads == "same_upper")
    given = wholes(pads)
    return list(zip(given[:2], given[2:], strict=True))


def _mean(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    (data,) = unit.inputs
    if steps or not binding.is_plain(data, 4):
        return None
    source, result = binding.shape(data), binding.shape(unit.outputs[0])
    axes = [2, 3] if unit.kind == _GLOBAL_POOL else wholes(unit.attributes.get("dims") or [])
    if sorted(axis % 4 for axis in axes) != [2, 3]:
        return None
    pooled, zeros, ones = (*source[:2], 1, 1), (0, 0), (1, 1)

    def describe() -> Primitive:
        window = source[2:], ones, ones, zeros, zeros
        return floats.pooling(binding.library, AVERAGE_ALL, (source, pooled), window)

    seen_as = None if result == pooled else result
    return binding.kernel(describe, {SRC: 0}, binding.buffer(pooled, images=True, seen_as=seen_as))


def _concatenation(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Values of any type one after the other; those that oneDNN has not move as others do."""
    (result,) = unit.outputs
    shape, dim, dtype = binding.shape(result), unit.attributes["dim"], binding.dtype(result)
    shapes = [binding.shape(name) for name in unit.inputs]
    if steps or len(unit.inputs) < 2 or any(0 in shape for shape in shapes):
        return None
    if {binding.dtype(name) for name in unit.inputs} != {dtype}:
        return None
    assert isinstance(dim, int)
    in_turn = len(shapes) == math.prod(shape[dim % len(shape) :])
    if in_turn and (alternating := _alternating(unit, binding)) is not None:
        return alternating
    images, library = not binding.lies_dense(result), binding.library
    words: tuple[int, ...] = ()
    if dtype != library.dtype:
        size = DTYPE_BYTES[dtype]
        if images or size not in (1, 4, 8):
            return None
        words = (size // 4,) if size > 1 else ()
        library = library.on("FP32" if words else "UINT8")

    def describe() -> Primitive:
        layout = library.images if images else library.dense
        parts = [layout((*part, *words)) for part in shapes]
        return floats.concat(library, parts, layout((*shape, *words)), dim % len(shape))

    arguments = {MANY + i: i for i in range(len(unit.inputs))}
    return binding.kernel(describe, arguments, Buffer(shape, images, dtype=dtype))


def _alternating(unit: Operator, binding: UnitBinding) -> Kernel | None:
    """Elements of each operand in turn, where oneDNN would copy them one by one."""
    (result,), (first, *_) = unit.outputs, unit.inputs
    dtype, count = binding.dtype(result), len(unit.inputs)
    size, part = DTYPE_BYTES[dtype], View(dtype, (math.prod(binding.shape(first)),), (1,))
    copy = copy_of(part, (1,), binding.library, count)
    if copy is None or not all(map(binding.lies_dense, (*unit.inputs, result))):
        return None

    def make(threads: int) -> Recipe:
        actions = [
            Action(
                copy(threads),
                {},
                {MANY: Place("operand", at), DST: Place("result", 0, at * size)},
            )
            for at in range(count)
        ]
        operands = tuple((at, False) for at in range(count))
        buffer = Buffer(binding.shape(result), images=False, dtype=dtype)
        return Recipe(tuple(actions), operands, (buffer,))

    return Kernel(VARIANT, recipe=make)


def _crops(unit: Operator) -> bool:
    pads = unit.attributes.get("pads")
    return unit.kind == "braid.pad" and isinstance(pads, list) and max(wholes(pads), default=0) <= 0


def _pad(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """A number around a value: for each axis a concatenation with constants."""
    data, (result,), how = unit.inputs[0], unit.outputs, unit.attributes
    if steps or unit.host or not binding.is_plain(data) or how.get("mode") != "constant":
        return None
    pads, number = wholes(how["pads"]), how.get("value") or 0.0
    axes = wholes(how.get("axes") or [*range(len(pads) // 2)])
    if not isinstance(number, int | float) or min(pads, default=-1) < 0 or not any(pads):
        return None
    images, library = not binding.lies_dense(result), binding.library
    layout = library.images if images else library.dense
    of_type = ARRAY_TYPES[library.dtype]

    def make(threads: int) -> Recipe:
        shape = [*binding.shape(data)]
        actions, buffers, source = list[Action](), list[Buffer](), Place("operand", 0)
        for axis, before, after in zip(axes, pads, pads[len(axes) :], strict=False):
            if not before + after:
                continue
            extents = [count for count in (before, shape[axis], after) if count]
            data_at = MANY + bool(before)
            parts = [[*shape[:axis], count, *shape[axis % len(shape) + 1 :]] for count in extents]
            shape[axis] = sum(extents)
            fixed = {
                MANY + place: np.full(part, number, of_type)
                for place, part in enumerate(parts)
                if MANY + place != data_at
            }
            with library.threads(threads):
                layouts = [layout(part) for part in parts]
                primitive = floats.concat(library, layouts, layout(shape), axis % len(shape))
            made = Place("temporary", len(buffers))
            actions.append(Action(primitive, fixed, {data_at: source, DST: made}))
            buffers.append(binding.buffer(tuple(shape), images=images))
            source = made
        last = replace(actions[-1], places={**actions[-1].places, DST: Place("result", 0)})
        recipe = (*actions[:-1], last), ((0, images),), (buffers[-1],), tuple(buffers[:-1])
        return Recipe(*recipe)

    return Kernel(VARIANT, recipe=make)


_BINDERS: Mapping[str, Callable[[Operator, UnitBinding, list[PostOp]], Kernel | None]] = {
    "aten.convolution": _convolution,
    "braid.convolution_add": _convolution,
    "aten.linear": _linear,
    "braid.linear_add": _linear,
    "braid.max_pool": _pooling,
    "braid.avg_pool": _pooling,
    "aten.mean": _mean,
    _GLOBAL_POOL: _mean,
    "aten.cat": _concatenation,
    "braid.pad": _pad,
    "aten.batch_norm": batch_norm,
    "braid.resize": resized,
    "braid.recurrent": recurrent,
    "aten.matmul": _matmul,
    WEIGHTED_SUM: weighted,
    "braid.cast": cast,
    **dict.fromkeys(COMBINING, combined),
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(NATIVE_KINDS, bind_natively),
}


def with_residual(unit: Operator, steps: list[PostOp]) -> tuple[list[PostOp], dict[int, int]]:
    """Post-operations, and the position of the operand that each moving argument takes."""
    if not unit.kind.endswith("_add"):
        return steps, {SRC: 0}
    return [(ADD, 0.0, 0.0), *steps], {SRC: 0, POST_OP | SRC_1: 3}
