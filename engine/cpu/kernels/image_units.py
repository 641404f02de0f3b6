"""Units on oneDNN primitives that scale channels or cut images.

Such units are rare, but a unit that needs the interpreter ends a native segment, and beside other
lanes it takes those out of it, too (docs/decisions/0017-bursts.md).
"""

from __future__ import annotations

import torch

from braid.core.graph import Operator
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding, single
from braid.engine.onednn import floats
from braid.engine.onednn.library import BIAS, SRC, WEIGHTS, PostOp
from braid.engine.onednn.recipe import Recipe
from braid.engine.ops.families.shape import sliced_positions
from braid.engine.program.attributes import wholes
from braid.engine.program.kernel import Kernel


def batch_norm(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Batch norm with stored statistics, as a 1x1 convolution of each channel by itself.

    In FP32 only: a convolution on narrower data would round the statistics, too.
    """
    data, *names = unit.inputs
    if len(names) != 4 or binding.library.dtype != torch.float32:
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
            primitive = floats.convolution(binding.library, shapes, bias, window, steps)
            name = "/".join(names)
            packed = binding.packed.for_primitive(binding.library, primitive, name, weight)
        return single(primitive, {WEIGHTS: packed, BIAS: bias}, {SRC: 0}, result_buffer)

    return Kernel(VARIANT, recipe=make, needs_finite=bool(steps))


def sliced(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Kernel of a forward slice by constants, as a copy; None for any other slice."""
    (data,) = unit.inputs[:1]
    if steps or unit.host or len(unit.inputs) > 1 or not binding.is_plain(data, 4):
        return None
    source, result = binding.shape(data), binding.shape(unit.outputs[0])
    attributes = unit.attributes
    starts, ends = wholes(attributes["starts"]), wholes(attributes["ends"])
    axes = wholes(attributes.get("axes") or list(range(len(starts))))
    strides = wholes(attributes.get("steps") or [1] * len(starts))
    if any(stride < 1 for stride in strides):
        return None
    positions = sliced_positions(source, starts, ends, axes, strides)
    if any(len(places) * places.step > n for places, n in zip(positions, source, strict=True)):
        return None  # oneDNN refuses strides by which the last element could lie in the next row
    first = [places.start for places in positions]
    steps_apart = [places.step for places in positions]
    result_buffer = binding.buffer(result, images=True)

    def make(threads: int) -> Recipe:
        with binding.library.threads(threads):
            primitive, offset_bytes = floats.slice_of_images(
                binding.library, source, result, first, steps_apart
            )
        return single(primitive, {}, {SRC: 0}, result_buffer, offset_bytes)

    return Kernel(VARIANT, recipe=make)
