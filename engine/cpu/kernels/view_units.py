"""Views, else copies; batch norms of their own and resizing on oneDNN primitives.

A view is the bytes of its operand where these lie in the wanted order. A unit that needs the
interpreter would end a native segment (docs/decisions/0017-bursts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from braid.core.graph import Operator
from braid.engine.cpu.kernels.element_units import copy_of, type_of
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding, single
from braid.engine.onednn import floats
from braid.engine.onednn.library import BIAS, DST, LINEAR, MANY, NEAREST, SRC, WEIGHTS, PostOp
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.dtypes import DTYPE_NAMES, torch_dtype
from braid.engine.ops.families.resize import ResizeOptions, usual_sampling
from braid.engine.ops.kinds import EPILOGUE, bound, call
from braid.engine.passes.attention import RESHAPES, shares
from braid.engine.program.kernel import Kernel

VIEW_KINDS = RESHAPES | {
    *("aten.permute", "aten.select", "braid.slice", "braid.split", "braid.expand"),
}

_COPIED_BYTES = 1 << 20  # most bytes of an input that are copied rather than reshaped in Python


def viewed(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    dtype = type_of(unit.outputs[0], binding)
    if steps or len(unit.inputs) != 1 or unit.host:
        return None
    (source,) = unit.inputs
    shapes = [binding.shape(name) for name in (source, *unit.outputs)]
    if any(0 in shape for shape in shapes) or type_of(source, binding) != dtype:
        return None
    of_type = torch_dtype(dtype)
    x = torch.empty_strided(shapes[0], binding.strides(source), dtype=of_type, device="meta")
    results = call(unit, [x])[: len(unit.outputs)]
    operands = ((0, not binding.lies_dense(source)),)
    buffers = tuple(
        Buffer(binding.shape(name), not binding.lies_dense(name), dtype=dtype)
        for name in unit.outputs
    )
    wanted = [binding.strides(name) for name in unit.outputs]
    is_view = all(
        shares(y, x) and _lies_as(y, strides) for y, strides in zip(results, wanted, strict=True)
    )
    # Memory of callers is seen through in Python only, which spares a copy where it is long.
    copies_input = unit.kind not in RESHAPES or x.nbytes <= _COPIED_BYTES
    of_callers = {*(binding.graph.inputs if copies_input else ()), *binding.graph.outputs.values()}
    if is_view and of_callers.isdisjoint((source, *unit.outputs)):
        offsets = tuple(x.itemsize * int(y.storage_offset()) for y in results)
        recipe = Recipe((), operands, buffers, views=offsets)
        return Kernel(VARIANT, bound(unit), lambda _: recipe)
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
    unit: Operator, x: Tensor, y: Tensor, strides: Sequence[int], binding: UnitBinding
) -> _Copy | None:
    """A copy of a view to memory of these strides; None if there is none outside Python."""
    if not shares(y, x):
        if unit.kind not in RESHAPES or not _lies_as(y, strides):
            return None
        # Images, whose elements come into the order of their shape, which the reshape keeps.
        y, strides = x, torch.empty(x.shape, device="meta").stride()
    offset, library = int(y.storage_offset()), binding.library

    def by_onednn(number: int, _: int) -> Action:
        shape = tuple(y.shape)
        layouts = library.strided(shape, y.stride()), library.strided(shape, strides)
        source = Place("operand", 0, y.dtype.itemsize * offset)
        return Action(library.copy(*layouts), {}, {SRC: source, DST: Place("result", number)})

    if DTYPE_NAMES[y.dtype] == library.dtype and _is_taken_by_onednn(y):
        return by_onednn
    copy = copy_of(y, strides, library)
    if copy is None:
        return None
    places = {MANY: Place("operand", 0)}
    return lambda number, threads: Action(
        copy(threads), {}, {**places, DST: Place("result", number)}
    )


def _is_taken_by_onednn(y: Tensor) -> bool:
    """It repeats nothing, and takes no strides by which an element could lie in the next row."""
    extents = zip(y.stride(), y.shape, strict=True)
    long = sorted((step, extent) for step, extent in extents if extent > 1)
    return all(step > 0 for step, _ in long) and all(
        step * extent <= further for (step, extent), (further, _) in pairwise(long)
    )


def _lies_as(tensor: Tensor, strides: Sequence[int]) -> bool:
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
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
    result_buffer = binding.buffer(result, images=True)
    factors = scale / torch.sqrt(variance + eps)
    bias, weight = shift - mean * factors, factors.reshape(-1, 1, 1, 1, 1)

    def make(threads: int) -> Recipe:
        with binding.library.threads(threads):
            shapes, window = (result, tuple(weight.shape), result), ([1, 1], [1, 1], [0, 0], [0, 0])
            of_bias = DTYPE_NAMES[bias.dtype]
            primitive = floats.convolution(binding.library, shapes, of_bias, window, steps)
            name = "/".join(names)
            packed = binding.packed.for_primitive(binding.library, primitive, name, weight)
        return single(primitive, {WEIGHTS: packed, BIAS: bias}, {SRC: 0}, result_buffer)

    return Kernel(VARIANT, recipe=make, needs_finite=bool(steps))


def resized(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    data, (result,) = unit.inputs[0], unit.outputs
    if not binding.is_plain(data, 4) or len(unit.inputs) > 1 or unit.host:
        return None
    given = {key: value for key, value in unit.attributes.items() if key != EPILOGUE}
    shapes = binding.shape(data), binding.shape(result)
    image = torch.empty(shapes[0], device="meta")
    sampling = usual_sampling(image, ResizeOptions(**given))  # type: ignore[arg-type]
    algorithm = {"nearest": NEAREST, "half": LINEAR}.get(sampling or "")
    if algorithm is None:
        return None
    describe = partial(floats.resampling, binding.library, algorithm, shapes, steps)
    buffer = binding.buffer(shapes[1], images=True)
    return binding.kernel(describe, {SRC: 0}, buffer, needs_finite=bool(steps))
