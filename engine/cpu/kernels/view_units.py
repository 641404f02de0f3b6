"""Views, else copies; batch norms of their own and resizing on oneDNN primitives.

A view is the bytes of its operand where these lie in the wanted order. A unit that needs the
interpreter would end a native segment (docs/decisions/0017-bursts.md).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from braid.core.graph import Operator
from braid.core.tensor import DTYPE_BYTES
from braid.engine.cpu.border import on_arrays, sampling_of, views_of
from braid.engine.cpu.kernels.element_units import copy_of
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding, View, WithWeights
from braid.engine.onednn import floats
from braid.engine.onednn.library import BIAS, DST, LINEAR, MANY, NEAREST, SRC, PostOp
from braid.engine.onednn.recipe import Action, Place, Recipe
from braid.engine.ops.families.resize import ResizeOptions
from braid.engine.ops.kinds import EPILOGUE, bound
from braid.engine.passes.attention import RESHAPES
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import dtype_of, strides_of

VIEW_KINDS = RESHAPES | {
    *("aten.permute", "aten.select", "braid.slice", "braid.split", "braid.expand"),
}

_COPIED_BYTES = 1 << 20  # most bytes of an input that are copied rather than reshaped in Python


def viewed(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    dtype = binding.dtype(unit.outputs[0])
    if steps or len(unit.inputs) != 1 or unit.host:
        return None
    (source,) = unit.inputs
    shapes = [binding.shape(name) for name in (source, *unit.outputs)]
    if any(0 in shape for shape in shapes) or binding.dtype(source) != dtype:
        return None
    x, size = View(dtype, shapes[0], binding.strides(source)), DTYPE_BYTES[dtype]
    results = views_of(unit, x)[: len(unit.outputs)]
    operands = ((0, not binding.lies_dense(source)),)
    buffers = tuple(binding.result(name) for name in unit.outputs)
    wanted = [binding.strides(name) for name in unit.outputs]
    is_view = all(
        not y.is_copy and _lies_as(y, strides) for y, strides in zip(results, wanted, strict=True)
    )
    # Memory of callers is seen through in Python only, which spares a copy where it is long.
    copies_input = unit.kind not in RESHAPES or size * math.prod(x.shape) <= _COPIED_BYTES
    of_callers = {*(binding.graph.inputs if copies_input else ()), *binding.graph.outputs.values()}
    if is_view and of_callers.isdisjoint((source, *unit.outputs)):
        offsets = tuple(size * y.offset for y in results)
        recipe = Recipe((), operands, buffers, views=offsets)
        return Kernel(VARIANT, on_arrays(bound(unit)), lambda _: recipe)
    copies = [
        _copy(unit, x, y, strides, binding) for y, strides in zip(results, wanted, strict=True)
    ]
    if None in copies:
        return None

    def make(threads: int) -> Recipe:
        with binding.library.threads(threads):
            actions = [copy(number, threads) for number, copy in enumerate(copies) if copy]
        return Recipe(tuple(actions), operands, buffers)

    return Kernel(VARIANT, recipe=make)


_Copy = Callable[[int, int], Action]  # a copy to the result of this number, for so many threads


def _copy(
    unit: Operator, x: View, y: View, strides: Sequence[int], binding: UnitBinding
) -> _Copy | None:
    """A copy of a view to memory of these strides; None if there is none outside Python."""
    if y.is_copy:
        if unit.kind not in RESHAPES or not _lies_as(y, strides):
            return None
        # Images, whose elements come into the order of their shape, which the reshape keeps.
        y, strides = x, strides_of(x.shape)
    library = binding.library

    def by_onednn(number: int, _: int) -> Action:
        layouts = library.strided(y.shape, y.strides), library.strided(y.shape, strides)
        source = Place("operand", 0, DTYPE_BYTES[y.dtype] * y.offset)
        return Action(library.copy(*layouts), {}, {SRC: source, DST: Place("result", number)})

    if y.dtype == library.dtype and _is_taken_by_onednn(y):
        return by_onednn
    copy = copy_of(y, strides, library)
    if copy is None:
        return None
    places = {MANY: Place("operand", 0)}
    return lambda number, threads: Action(
        copy(threads), {}, {**places, DST: Place("result", number)}
    )


def _is_taken_by_onednn(y: View) -> bool:
    """It repeats nothing, and takes no strides by which an element could lie in the next row."""
    extents = zip(y.strides, y.shape, strict=True)
    long = sorted((step, extent) for step, extent in extents if extent > 1)
    return all(step > 0 for step, _ in long) and all(
        step * extent <= further for (step, extent), (further, _) in pairwise(long)
    )


def _lies_as(view: View, strides: Sequence[int]) -> bool:
    pairs = zip(view.shape, view.strides, strides, strict=True)
    return all(extent == 1 or have == want for extent, have, want in pairs)


def batch_norm(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """A 1x1 convolution by channel, in FP32 only: narrower data would round the statistics, too."""
    data, *names = unit.inputs
    if len(names) != 4 or binding.library.dtype != "FP32":
        return None
    scale, shift, mean, variance = (binding.constant(name) for name in names)
    if scale is None or shift is None or mean is None or variance is None:
        return None
    eps, result = unit.attributes.get("eps"), binding.shape(unit.outputs[0])
    if not isinstance(eps, float) or not binding.is_plain(data, 4):
        return None
    factors = scale / np.sqrt(variance + eps)
    bias, weight = shift - mean * factors, factors.reshape(-1, 1, 1, 1, 1)
    shapes, window = (result, weight.shape, result), ([1, 1], [1, 1], [0, 0], [0, 0])

    def describe() -> WithWeights:
        primitive = floats.convolution(binding.library, shapes, dtype_of(bias), window, steps)
        return primitive, "/".join(names), weight

    buffer = binding.buffer(result, images=True)
    return binding.kernel(describe, {SRC: 0}, buffer, fixed={BIAS: bias}, needs_finite=bool(steps))


def resized(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    data, (result,) = unit.inputs[0], unit.outputs
    if not binding.is_plain(data, 4) or len(unit.inputs) > 1 or unit.host:
        return None
    given = {key: value for key, value in unit.attributes.items() if key != EPILOGUE}
    shapes = binding.shape(data), binding.shape(result)
    sampling = sampling_of(shapes[0], ResizeOptions(**given))  # type: ignore[arg-type]
    algorithm = {"nearest": NEAREST, "half": LINEAR}.get(sampling or "")
    if algorithm is None:
        return None
    describe = partial(floats.resampling, binding.library, algorithm, shapes, steps)
    buffer = binding.buffer(shapes[1], images=True)
    return binding.kernel(describe, {SRC: 0}, buffer, needs_finite=bool(steps))
