"""The border to torch, the only module of this room that imports it.

The room has arrays; torch gets tensors on the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor

from braid.core.attributes import image_window
from braid.core.graph import Operator, OpGraph
from braid.engine.cpu.kernels.epilogues import post_ops
from braid.engine.cpu.kernels.unit_binding import View
from braid.engine.onednn.recipe import lies_as
from braid.engine.ops.dtypes import array_of, arrays_of, tensor_of, tensors_of, torch_dtype
from braid.engine.ops.families.resize import ResizeOptions, usual_sampling
from braid.engine.ops.kinds import call
from braid.engine.passes.attention import shares
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import Kernel, Run
from braid.engine.program.program import Program
from braid.engine.runtime.arrays import Array, Arrays
from braid.engine.runtime.yielding import YieldToRequests

set_threads = torch.set_num_threads
TORCH_VERSION = torch.__version__
isa = torch.backends.cpu.get_cpu_capability  # of torch's kernels

_TORCH_NAMES = {
    "logistic": ("sigmoid", 0),
    "relu": ("relu", 0),
    "tanh": ("tanh", 0),
    "swish": ("swish", 0),
    "hardswish": ("hardswish", 0),
    "clip": ("hardtanh", 2),
}
"""oneDNN's name of an activation -> torch's name of it, and how many numbers torch takes."""


def on_arrays(function: Run, fixed: Mapping[int, Tensor] = MappingProxyType({})) -> Run:
    """A function of tensors as one of arrays; ``fixed`` are constants, by position."""

    def run(*operands: Array | None) -> Array | tuple[Array, ...]:
        result = function(
            *[
                fixed[at] if at in fixed else None if array is None else tensor_of(array)
                for at, array in enumerate(operands)
            ]
        )
        return array_of(result) if isinstance(result, Tensor) else tuple(map(array_of, result))

    return run


def interpreted(program: Program, inputs: Arrays, pause: YieldToRequests) -> Arrays:
    constants = program.as_tensors
    if not constants:
        constants.update(tensors_of(program.constants()))
    return arrays_of(interpret(program.graph, constants, tensors_of(inputs), pause))


def laid(array: Array | None, *, images: bool) -> Array:
    """The numbers in channels_last, or in the order of their shape; copied by the thread's team."""
    assert array is not None, "an operand was released or never produced"
    if lies_as(array, images=images):
        return array
    layout = torch.channels_last if images else torch.contiguous_format
    return array_of(tensor_of(array).contiguous(memory_format=layout))


def touch(array: Array) -> None:
    """Write to all of an array, by the thread's team."""
    tensor_of(array).add_(1.0)


def views_of(unit: Operator, source: View) -> list[View]:
    """Results of a unit that moves no elements if it can: what it shows of ``source``."""
    shape, strides, dtype = source.shape, source.strides, torch_dtype(source.dtype)
    x = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return [
        View(source.dtype, tuple(y.shape), y.stride(), int(y.storage_offset()), not shares(y, x))
        for y in call(unit, [x])
    ]


def sampling_of(shape: Sequence[int], options: ResizeOptions) -> str | None:
    """``usual_sampling`` of images of this shape."""
    return usual_sampling(torch.empty(shape, device="meta"), options)


def through_torch(unit: Operator, graph: OpGraph, constants: Arrays) -> Kernel | None:
    """Prepacked 2-D fp32 convolution with bias and at most one fused activation."""
    if unit.kind != "aten.convolution":
        return None
    data, weight_name, bias_name = (*unit.inputs, "")[:3]
    spec = graph.spec(data)
    weight, bias = constants.get(weight_name), constants.get(bias_name)
    fused = _torch_activation(unit)
    if (
        weight is None
        or fused is None
        or (bias_name and bias is None)
        or unit.attributes.get("transposed")
        or spec.dtype != "FP32"
        or len(spec.shape) != 4
        or 0 in spec.shape
    ):
        return None
    name, scalars = fused
    stride, padding, dilation, groups = image_window(unit)
    window = padding, stride, dilation, groups

    @cache
    def packed() -> Tensor:
        reorder = torch.ops.mkldnn._reorder_convolution_weight
        ready: Tensor = reorder(tensor_of(weight), *window, list(spec.shape))
        return ready

    kernel = torch.ops.mkldnn._convolution_pointwise.default
    added = None if bias is None else tensor_of(bias)

    def convolution(x: Tensor, *_: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        result: Tensor = kernel(x, packed(), added, *window, name, scalars, "")
        return result

    return Kernel("torch", on_arrays(convolution), needs_finite=name != "none")


def _torch_activation(unit: Operator) -> tuple[str, list[float]] | None:
    steps = post_ops(unit)
    if not steps:
        return None if steps is None else ("none", [])
    name, *numbers = steps[0]
    if len(steps) > 1 or name not in _TORCH_NAMES:
        return None
    if name == "relu" and numbers[0]:
        return "leaky_relu", [float(numbers[0])]
    torch_name, count = _TORCH_NAMES[name]
    return torch_name, [float(number) for number in numbers[:count]]
