"""The border to torch, the only module of this room that imports it.

Callers have tensors, and units without a recipe take and make them. The room has arrays, on the
same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from braid.core.attributes import image_window
from braid.core.graph import Operator, OpGraph
from braid.engine.cpu.kernels.epilogues import post_ops
from braid.engine.cpu.kernels.unit_binding import View
from braid.engine.onednn.library import Array, address_of
from braid.engine.onednn.recipe import lies_as
from braid.engine.ops.dtypes import array_of, tensor_of, torch_dtype
from braid.engine.ops.families.resize import ResizeOptions, usual_sampling
from braid.engine.ops.kinds import call
from braid.engine.passes.attention import shares
from braid.engine.program.kernel import Kernel, PackedWeights
from braid.engine.runtime.threads import on_one_thread

Arrays = Mapping[str, Array]
Slots = list[Array | None]  # what ``program.Environment`` is of tensors

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


def arrays_of(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: array_of(tensor) for name, tensor in tensors.items()}


def slots_of(tensors: Sequence[Tensor | None]) -> Slots:
    return [None if tensor is None else array_of(tensor) for tensor in tensors]


def run_kernel(kernel: Kernel, threads: int, operands: Slots) -> Sequence[Array | None]:
    if kernel.run is None:
        recipe, launch = kernel.launch_on(threads)
        given = [laid(operands[position], images=images) for position, images in recipe.operands]
        return launch([*map(address_of, given)])
    result = kernel.run(*[None if array is None else tensor_of(array) for array in operands])
    return slots_of((result,) if isinstance(result, Tensor) else result)


def laid(array: Array | None, *, images: bool) -> Array:
    """The numbers in channels_last, or in the order of their shape; copied by the thread's team."""
    assert array is not None, "an operand was released or never produced"
    if lies_as(array, images=images):
        return array
    layout = torch.channels_last if images else torch.contiguous_format
    return array_of(tensor_of(array).contiguous(memory_format=layout))


def copy_into(outputs: Mapping[str, Tensor], results: Arrays) -> None:
    with on_one_thread(sum(array.nbytes for array in results.values())):
        for name, array in results.items():
            outputs[name].copy_(tensor_of(array))


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


def through_torch(
    unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
) -> Kernel | None:
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

    def pack() -> Tensor:
        reorder = torch.ops.mkldnn._reorder_convolution_weight
        ready: Tensor = reorder(weight, *window, list(spec.shape))
        return ready

    key = weight_name, repr(window), spec.shape
    kernel = torch.ops.mkldnn._convolution_pointwise.default

    def convolution(x: Tensor, *_: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ready = packed.derived(key, weight, pack)
        result: Tensor = kernel(x, ready, bias, *window, name, scalars, "")
        return result

    return Kernel("torch", convolution, needs_finite=name != "none")


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
