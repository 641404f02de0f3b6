"""Kernels for CPU: every way to run a unit.

variants(unit) ──> [oneDNN directly, Winograd's method, oneDNN through torch, the registry's]
                   those that fit
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

import torch
from torch import Tensor

from braid.core.attributes import image_window
from braid.core.graph import Operator, OpGraph
from braid.core.schedule import USUAL_KERNELS
from braid.core.tensor import DTYPE_BYTES
from braid.engine.cpu.kernels.elementwise_units import image_values
from braid.engine.cpu.kernels.epilogues import post_ops
from braid.engine.cpu.kernels.integers.binding import KINDS as ON_INTEGERS
from braid.engine.cpu.kernels.integers.binding import bind_on_integers
from braid.engine.cpu.kernels.onednn_units import bind_directly
from braid.engine.cpu.kernels.unit_binding import UnitBinding
from braid.engine.cpu.kernels.winograd import bind_winograd
from braid.engine.onednn import floats
from braid.engine.onednn.library import DST, SRC, OneDnn, find_onednn
from braid.engine.onednn.recipe import Action, Place, Recipe
from braid.engine.ops.kinds import bound
from braid.engine.program.kernel import (
    REGISTRY,
    Kernel,
    KernelSource,
    MergedUnit,
    PackedWeights,
    cut_output,
    kernel_signature,
)
from braid.engine.program.program import Binding, Program, bind
from braid.engine.runtime.yielding import YieldToRequests, no_pause

_ON_BYTES = frozenset({"aten.cat", "braid.max_pool"})  # oneDNN moves 8-bit integers, too

_TORCH_NAMES = {
    "logistic": ("sigmoid", 0),
    "relu": ("relu", 0),
    "tanh": ("tanh", 0),
    "swish": ("swish", 0),
    "hardswish": ("hardswish", 0),
    "clip": ("hardtanh", 2),
}
"""oneDNN's name of an activation -> torch's name of it, and how many numbers torch takes."""


class CpuKernels:
    """The CPU's ``KernelSource``; remembers what it found out about the latest graph."""

    def __init__(self) -> None:
        self._latest: tuple[OpGraph, Set[str]] | None = None

    def variants(
        self, unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> Iterator[Kernel]:
        library = find_onednn()
        if library is not None:
            library = library.on(_data_type(unit, graph))
            binding = UnitBinding(library, graph, constants, packed, self._images(graph))
            bind = bind_on_integers if unit.kind in ON_INTEGERS else bind_directly
            direct = bind(unit, binding)
            if direct is not None:
                yield direct
                if (winograd := bind_winograd(unit, binding)) is not None:
                    yield winograd
        if (through_torch := _through_torch(unit, graph, constants, packed)) is not None:
            yield through_torch
        yield Kernel(REGISTRY, bound(unit))

    def _images(self, graph: OpGraph) -> Set[str]:
        if self._latest is None or self._latest[0] is not graph:
            self._latest = graph, image_values(graph)
        return self._latest[1]

    def signature(self, unit: Operator, graph: OpGraph) -> str:
        """Signature of the unit alone: a store keeps choices by device."""
        return kernel_signature(unit, graph)

    def place(
        self, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> dict[str, Tensor]:
        """The constants as they are: in memory already."""
        return dict(constants)

    def cut(self, kernel: Kernel, merged: MergedUnit, threads: int) -> Kernel:
        library = find_onednn()
        if kernel.recipe is None or library is None:
            return cut_output(kernel, merged, threads)
        return cut_by_copies(library.on(_data_type(merged.unit, merged.graph)), kernel, merged)


CPU_KERNELS: KernelSource = CpuKernels()


def bind_on_cpu(
    graph: OpGraph,
    constants: Mapping[str, Tensor],
    packed: PackedWeights,
    threads: int,
    choices: Mapping[str, str] = USUAL_KERNELS,
    pause: YieldToRequests = no_pause,
) -> Program:
    return bind(graph, constants, Binding(CPU_KERNELS, threads, packed, choices), pause)


def _data_type(unit: Operator, graph: OpGraph) -> str:
    dtype, *others = {graph.spec(name).dtype for name in unit.outputs}
    on_bytes = dtype in ("UINT8", "INT8") and unit.kind in _ON_BYTES
    return dtype if not others and (dtype == "BF16" or on_bytes) else "FP32"


def _through_torch(
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
        ready = packed.once(key, pack)
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


def cut_by_copies(library: OneDnn, kernel: Kernel, merged: MergedUnit) -> Kernel:
    def make(threads: int) -> Recipe:
        recipe = kernel.recipe_on(threads)
        assert recipe is not None
        with library.threads(threads):
            return _with_copies(library, recipe, merged)

    return Kernel(f"{kernel.variant}, merged", recipe=make, needs_finite=kernel.needs_finite)


def _with_copies(library: OneDnn, recipe: Recipe, merged: MergedUnit) -> Recipe:
    (first,), (result,) = recipe.actions, recipe.results
    whole = len(recipe.temporaries)  # where all parts lie together
    places = {
        argument: Place("temporary", whole) if place.kind == "result" else place
        for argument, place in first.places.items()
    }
    actions, start = [Action(first.computation, first.fixed, places)], 0
    for number, shape in enumerate(merged.parts):
        if result.images:
            copy = floats.slice_of_channels(library, shape, result.shape[1])
        else:
            copy = floats.slice_of_columns(
                library, math.prod(shape[:-1]), shape[-1], result.shape[-1]
            )
        source = Place("temporary", whole, DTYPE_BYTES[result.dtype] * start)
        actions.append(Action(copy, {}, {SRC: source, DST: Place("result", number)}))
        start += shape[merged.axis]
    results = tuple(replace(result, shape=shape) for shape in merged.parts)
    return Recipe(tuple(actions), recipe.operands, results, (*recipe.temporaries, result))
