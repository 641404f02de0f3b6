"""Views: the bytes of their operand where these lie in the wanted order, else copies by oneDNN.

A view that needs the interpreter would end a native segment (docs/decisions/0017-bursts.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from braid.core.graph import Operator
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding
from braid.engine.onednn.library import DST, SRC, PostOp
from braid.engine.onednn.recipe import Action, Place, Recipe
from braid.engine.ops.kinds import bound, call
from braid.engine.passes.attention import RESHAPES
from braid.engine.program.kernel import Kernel

VIEW_KINDS = RESHAPES | {"aten.permute", "aten.select", "braid.slice", "braid.split"}

Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides, and offset of the first element, in elements."""


def viewed(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Kernel of a view of its only operand."""
    if steps or len(unit.inputs) != 1 or not all(map(binding.is_plain, unit.outputs)):
        return None
    (source,) = unit.inputs
    x = torch.empty_strided(binding.shape(source), binding.strides(source), device="meta")
    results = call(unit, [x])[: len(unit.outputs)]
    operands = ((0, not binding.lies_dense(source)),)
    buffers = tuple(
        binding.buffer(binding.shape(name), images=not binding.lies_dense(name))
        for name in unit.outputs
    )
    wanted = [binding.strides(name) for name in unit.outputs]
    size = binding.library.dtype.itemsize
    is_view = all(
        _is_view(y, x) and _lies_as(y, strides) for y, strides in zip(results, wanted, strict=True)
    )
    is_input = source in binding.graph.inputs and unit.kind not in RESHAPES
    if is_view and not is_input and not {*unit.outputs} & {*binding.graph.outputs.values()}:
        offsets = tuple(size * int(y.storage_offset()) for y in results)
        recipe = Recipe((), operands, buffers, views=offsets)
        return Kernel(VARIANT, bound(unit), lambda _: recipe)
    copies = [_copy(unit, x, y, strides) for y, strides in zip(results, wanted, strict=True)]
    if None in copies:
        return None

    def make(threads: int) -> Recipe:
        library, actions = binding.library, []
        with library.threads(threads):
            for number, copy in enumerate(copies):
                assert copy is not None
                (shape, strides, offset), target = copy
                primitive = library.copy(
                    library.strided(shape, strides), library.strided(shape, target)
                )
                places = {SRC: Place("operand", 0, size * offset), DST: Place("result", number)}
                actions.append(Action(primitive, {}, places))
        return Recipe(tuple(actions), operands, buffers)

    return Kernel(VARIANT, recipe=make)


def _copy(
    unit: Operator, x: Tensor, y: Tensor, strides: Sequence[int]
) -> tuple[Layout, Sequence[int]] | None:
    """What is read, and the strides to which it is copied; None if oneDNN cannot."""
    source: Layout = tuple(y.shape), y.stride(), int(y.storage_offset())
    if not _is_view(y, x):
        if unit.kind not in RESHAPES or not _lies_as(y, strides):
            return None
        # Images, whose elements come into the order of their shape, which the reshape keeps.
        source = tuple(x.shape), x.stride(), 0
        strides = torch.empty(x.shape, device="meta").stride()
    extents = zip(source[1], source[0], strict=True)
    long = sorted((step, extent) for step, extent in extents if extent > 1)
    if any(step <= 0 for step, _ in long):
        return None  # oneDNN repeats nothing
    if any(step * extent > further for (step, extent), (further, _) in pairwise(long)):
        return None  # and takes no strides by which the last element could lie in the next row
    return source, strides


def _is_view(tensor: Tensor, of: Tensor) -> bool:
    return bool(tensor.untyped_storage()._cdata == of.untyped_storage()._cdata)


def _lies_as(tensor: Tensor, strides: Sequence[int]) -> bool:
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(extent == 1 or have == want for extent, have, want in pairs)
