"""Kernels for CPU: every way to run a unit, and which one does.

    variants(unit) ──> [oneDNN directly, oneDNN through torch, the registry's]   those that fit
    choose(variants, choices) ──> the fastest measured one, or the first that can be made

A choice is remembered by the unit's signature: it serves every model with such a unit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from core.graph import Operator, OpGraph
from engine.kernels.activations import post_ops
from engine.kernels.direct import Site, bind_directly, image_window
from engine.kernels.kernel import Kernel, PackedWeights
from engine.kernels.onednn import Run, Unsupported, find_onednn
from engine.ops.registry import EPILOGUE, epilogue_steps, op

REGISTRY = "registry"

_TORCH_NAMES = {
    "logistic": ("sigmoid", 0),
    "relu": ("relu", 0),
    "tanh": ("tanh", 0),
    "swish": ("swish", 0),
    "hardswish": ("hardswish", 0),
    "clip": ("hardtanh", 2),
}
"""oneDNN's name of an activation -> torch's name of it, and how many numbers torch takes."""


def variants(
    unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
) -> list[Kernel]:
    """All kernels that can run ``unit``, the one that is usually fastest first."""
    library = find_onednn()
    site = None if library is None else Site(library, graph, constants, packed)
    found = (
        None if site is None else bind_directly(unit, site),
        _through_torch(unit, graph, constants, packed),
        Kernel(REGISTRY, _registry_run(unit)),
    )
    return [kernel for kernel in found if kernel is not None]


def choose(kernels: Sequence[Kernel], threads: int, wanted: str | None = None) -> Kernel:
    """The variant ``wanted``, else the first that can be made for ``threads`` threads."""
    for kernel in sorted(kernels, key=lambda kernel: kernel.variant != wanted):
        try:
            kernel.recipe_on(threads)
        except Unsupported:
            continue
        return kernel
    raise AssertionError("the registry runs everything")


def kernel_signature(unit: Operator, graph: OpGraph) -> str:
    """What the speed of a unit's kernels depends on: all but names and content."""
    specs = [graph.spec(name).to_json() if name else None for name in (*unit.inputs, *unit.outputs)]
    document = [
        unit.kind,
        dict(unit.attributes),
        [n in graph.constants for n in unit.inputs],
        specs,
    ]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:24]


def _through_torch(
    unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
) -> Kernel | None:
    """Prepacked 2-D fp32 convolution with bias and at most one fused activation."""
    if unit.kind != "aten.convolution":
        return None
    data, weight_name, *rest = unit.inputs
    bias_name = rest[0] if rest else ""
    spec = graph.spec(data)
    weight = constants.get(weight_name)
    bias = constants.get(bias_name) if bias_name else None
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
    """Torch's name and scalars for the unit's epilogue; None if it cannot be fused."""
    steps = post_ops(unit)
    if not steps:
        return None if steps is None else ("none", [])
    name, *numbers = steps[0]
    if len(steps) > 1 or name not in _TORCH_NAMES:
        return None
    if name == "relu" and numbers[0]:
        return "leaky_relu", [float(numbers[0])]
    known, count = _TORCH_NAMES[name]
    return known, [float(number) for number in numbers[:count]]


def _registry_run(unit: Operator) -> Run:
    """The registry's kernel with attributes bound, followed by the unit's epilogue."""
    attributes = dict(unit.attributes)
    epilogue = epilogue_steps(attributes.pop(EPILOGUE, None))
    run = partial(op(unit.kind).run, **attributes)
    if not epilogue:
        return run
    steps = [partial(definition.run, **arguments) for definition, arguments in epilogue]

    def kernel(*inputs: Tensor) -> tuple[Tensor, ...]:
        result = run(*inputs)
        first, *others = (result,) if isinstance(result, Tensor) else result
        for step in steps:
            result = step(first)
            assert isinstance(result, Tensor), "an epilogue is unary"
            first = result
        return (first, *others)

    return kernel
