"""Views: the bytes of their operand where these lie in the wanted order, else copies.

A view that needs the interpreter would end a native segment (docs/decisions/0017-bursts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from braid.core.graph import Operator
from braid.engine.cpu.kernels.element_units import copy_of, type_of
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding
from braid.engine.onednn.library import DST, MANY, SRC, PostOp
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.kinds import bound, call
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
    x = torch.empty_strided(shapes[0], binding.strides(source), dtype=dtype, device="meta")
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
        offsets = tuple(dtype.itemsize * int(y.storage_offset()) for y in results)
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

    if y.dtype == library.dtype and _is_taken_by_onednn(y):
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
