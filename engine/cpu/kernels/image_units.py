"""Batch norms of their own on oneDNN primitives.

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
