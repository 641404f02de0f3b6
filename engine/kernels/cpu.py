"""Kernels for CPU: oneDNN convolutions with prepacked weights and a fused activation.

    bind_cpu(unit) ──> a Kernel specialised to the unit's shapes, or None: use the registry

oneDNN's fused activations turn NaN into numbers (its ReLU is max(x, 0)), so a kernel says
whether it needs finite inputs; batches with others run on registry kernels.

Weights are reordered once per model, parameters and input shape and shared by all plans that
need the same one. Activations flow in channels_last, which oneDNN reads without a reorder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.graph import Operator, OpGraph
from engine.ops.registry import EPILOGUE, epilogue_steps

Run = Callable[..., Tensor | tuple[Tensor, ...]]
PackedWeights = dict[tuple[Any, ...], Tensor]

# registry kind of an epilogue -> (oneDNN attribute, algorithm); scalars come from the attributes
_FUSABLE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "aten.relu": ("relu", ()),
    "aten.sigmoid": ("sigmoid", ()),
    "aten.tanh": ("tanh", ()),
    "aten.silu": ("swish", ()),
    "aten.hardswish": ("hardswish", ()),
    "aten.clamp": ("hardtanh", ("min", "max")),
    "aten.leaky_relu": ("leaky_relu", ("negative_slope",)),
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """What runs a unit: ``outputs = run(*inputs)``."""

    run: Run
    needs_finite: bool = False  # a NaN or infinity going in may come out as a number


def bind_cpu(
    op: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
) -> Kernel | None:
    """Return a kernel for ``op``, or None where the registry's kernel is the one to use."""
    if op.kind == "aten.convolution":
        return _bind_convolution(op, graph, constants, packed)
    return None


def _bind_convolution(
    op: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
) -> Kernel | None:
    """Prepacked 2-D fp32 convolution with bias and at most one fused activation."""
    data, weight_name, *rest = op.inputs
    bias_name = rest[0] if rest else ""
    spec, attributes = graph.spec(data), op.attributes
    weight = constants.get(weight_name)
    bias = constants.get(bias_name) if bias_name else None
    if (
        weight is None
        or (bias_name and bias is None)
        or attributes.get("transposed")
        or spec.dtype != "FP32"
        or len(spec.shape) != 4
        or 0 in spec.shape
    ):
        return None
    fused = fused_activation(op)
    if fused is None:
        return None
    name, scalars = fused
    padding, stride = attributes["padding"], attributes["stride"]
    dilation, groups = attributes["dilation"], attributes["groups"]
    key = (weight_name, repr((padding, stride, dilation, groups)), spec.shape)
    if key not in packed:
        packed[key] = torch.ops.mkldnn._reorder_convolution_weight(
            weight, padding, stride, dilation, groups, list(spec.shape)
        )
    ready = packed[key]
    kernel = torch.ops.mkldnn._convolution_pointwise.default

    def convolution(x: Tensor, *_: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        result: Tensor = kernel(
            x, ready, bias, padding, stride, dilation, groups, name, scalars, ""
        )
        return result

    return Kernel(convolution, needs_finite=name != "none")


def fused_activation(unit: Operator) -> tuple[str, list[float]] | None:
    """OneDNN's name and scalars for the unit's epilogue; None if it cannot be fused."""
    steps = epilogue_steps(unit.attributes.get(EPILOGUE))
    if not steps:
        return "none", []
    if len(steps) > 1 or steps[0][0].kind not in _FUSABLE:
        return None
    ((definition, given),) = steps
    name, wanted = _FUSABLE[definition.kind]
    scalars = [given.get(scalar) for scalar in wanted]
    if set(given) - set(wanted) or not all(isinstance(value, int | float) for value in scalars):
        return None  # e.g. a clamp open at one side
    return name, [float(value) for value in scalars if isinstance(value, int | float)]
