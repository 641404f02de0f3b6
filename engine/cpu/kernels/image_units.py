"""Batch norms of their own and resizing on oneDNN primitives.

Such units are rare, but a unit that needs the interpreter ends a native segment, and beside other
lanes it takes those out of it, too (docs/decisions/0017-bursts.md).
"""

from __future__ import annotations

from functools import partial

import torch

from braid.core.graph import Operator
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding, single
from braid.engine.onednn import floats
from braid.engine.onednn.library import BIAS, LINEAR, NEAREST, SRC, WEIGHTS, PostOp
from braid.engine.onednn.recipe import Recipe
from braid.engine.ops.families.resize import ResizeOptions, usual_sampling
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.program.kernel import Kernel


def batch_norm(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """A 1x1 convolution by channel, in FP32 only: narrower data would round the statistics, too."""
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
