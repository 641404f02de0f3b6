"""The border to torch, the only module of this room that imports it.

The room has arrays; torch gets tensors on the same memory.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from braid.core.graph import Operator
from braid.engine.cpu.kernels.unit_binding import View
from braid.engine.onednn.recipe import lies_as
from braid.engine.ops.dtypes import array_of, tensor_of, torch_dtype
from braid.engine.ops.families.resize import ResizeOptions, usual_sampling
from braid.engine.ops.kinds import call
from braid.engine.passes.attention import shares
from braid.engine.program.kernel import Run
from braid.engine.runtime.arrays import Array

set_threads = torch.set_num_threads
TORCH_VERSION = torch.__version__
isa = torch.backends.cpu.get_cpu_capability  # of torch's kernels


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
