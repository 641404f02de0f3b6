"""Folding of per-channel scales and shifts into the weights of what comes before them.

    conv ─> batch_norm ─> mul(c) ─> add(c)      becomes      conv with other weights and a bias
    linear ─> reshape [-1, c] ─> batch_norm     becomes      linear with others ─> reshape

A batch norm with stored statistics, a product with and a sum with a constant by channel all are
``scale * y + shift``. The producers that can take them in: convolution, transposed convolution,
linear, and batch norm itself. Weights are recomputed in double precision.
"""

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.families.quantised_unit import DEQUANTISE
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.body import Weights, fresh
from braid.engine.passes.matching import Upstream, rewrite

_T = TypeVar("_T", float, Tensor)
_CONVOLUTION, _LINEAR, _NORM = "aten.convolution", "aten.linear", "aten.batch_norm"


@dataclass(frozen=True, slots=True)
class _Affine:
    """``scale * y + shift``; each of shape [channels], in double precision."""

    scale: Tensor
    shift: Tensor


def fold_affine(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Only where the producer's output has no other reader and its weights are constant."""
    return rewrite(graph, weights, _folded, _folded_behind_rows)


def matmul_to_linear(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Write a product with a constant matrix as ``linear``, which can take a bias."""
    return rewrite(graph, weights, _as_linear)


def _as_linear(op: Operator, upstream: Upstream) -> Operator | None:
    weights = upstream.weights
    if op.kind != "aten.matmul" or op.attributes:
        return None
    x, matrix = op.inputs
    if x in weights or matrix not in weights or weights[matrix].dim() != 2:
        return None
    transposed = f"{matrix}.T"
    if transposed not in weights:
        weights[transposed] = weights[matrix].t().contiguous()
    elif not torch.equal(weights[transposed], weights[matrix].t()):
        return None  # the model has a constant of that name
    return dataclasses.replace(op, kind=_LINEAR, inputs=(x, transposed))


def _folded(op: Operator, upstream: Upstream) -> Operator | None:
    """The producer of an operand with ``op`` in its weights; it keeps its name and place."""
    for position, value in enumerate(op.inputs[:2]):
        producer = upstream.only_read(value, _CONVOLUTION, _LINEAR, _NORM)
        layout = _channel_axis(producer, upstream) if producer is not None else None
        affine = _as_affine(op, position, layout, upstream.weights) if layout is not None else None
        if producer is not None and affine is not None:
            return _absorb(producer, affine, op.outputs[0], upstream.weights)
    return None


def _folded_behind_rows(op: Operator, upstream: Upstream) -> Operator | None:
    """A reshape of a linear, that leaves it its last axis, with ``op`` in the linear's weights."""
    view = upstream.only_read(op.inputs[0], "braid.reshape") if op.inputs else None
    linear = upstream.only_read(view.inputs[0], _LINEAR) if view is not None else None
    layout = _channel_axis(linear, upstream) if linear is not None else None
    if view is None or linear is None or layout is None or view.host:
        return None
    shape, channels = view.attributes.get("shape"), layout[0]
    if not isinstance(shape, list) or shape[-1:] != [channels] or EPILOGUE in view.attributes:
        return None
    affine = _as_affine(op, 0, (channels, -1, len(shape)), upstream.weights)
    absorbed = None
    if affine is not None:
        absorbed = _absorb(linear, affine, linear.outputs[0], upstream.weights)
    if absorbed is None:
        return None
    upstream.put(absorbed)
    return dataclasses.replace(view, name=op.name, outputs=op.outputs)


def _channel_axis(producer: Operator, upstream: Upstream) -> tuple[int, int, int] | None:
    """(channels, their axis, rank) of the producer's output; None if it cannot absorb anything."""
    ranks = upstream.ranks
    if producer.host or producer.attributes.get(EPILOGUE):
        return None
    if any(name and name not in upstream.weights for name in producer.inputs[2:]):
        return None
    weight = _weight(producer, upstream)
    if weight is None:
        return None
    if producer.kind == _CONVOLUTION:
        groups = producer.attributes.get("groups", 1)
        assert isinstance(groups, int)
        if groups < 1 or weight.shape[0] % groups:
            return None  # running it will tell
        transposed = producer.attributes.get("transposed", False)
        return weight.shape[1] * groups if transposed else weight.shape[0], 1, weight.dim()
    if producer.kind == _LINEAR and weight.dim() == 2:
        return weight.shape[0], -1, ranks.get(producer.inputs[0], 1)
    if producer.kind == _NORM and producer.inputs[0] in ranks:
        return weight.shape[0], 1, ranks[producer.inputs[0]]
    return None


def _weight(producer: Operator, upstream: Upstream) -> Tensor | None:
    """A constant weight in floats, or the integers of which a linear layer's is made."""
    name = (*producer.inputs, "")[1]
    maker = upstream.makers.get(name)
    if maker is not None and maker.kind == DEQUANTISE and producer.kind == _LINEAR:
        scale = upstream.weights.get(maker.inputs[1])
        is_fp32 = scale is not None and scale.dtype == torch.float32
        return upstream.weights.get(maker.inputs[0]) if is_fp32 else None
    weight = upstream.weights.get(name)
    return weight if weight is not None and weight.is_floating_point() else None


def _as_affine(
    op: Operator, position: int, layout: tuple[int, int, int], weights: Weights
) -> _Affine | None:
    """Scale and shift by channel that ``op`` applies to its operand at ``position``, or None."""
    if op.host or op.attributes.get(EPILOGUE):
        return None
    channels, axis, rank = layout
    if op.kind == _NORM:
        parameters = [weights.get(name) for name in op.inputs[1:]]
        eps = op.attributes["eps"]
        in_place = axis == 1 or rank == 2  # axis 1 of two is the last
        if position or not in_place or not isinstance(eps, float) or None in parameters:
            return None
        weight, bias, mean, var = (p.double() for p in parameters if p is not None)
        if weight.shape != (channels,):
            return None
        scale = weight / torch.sqrt(var + eps)
        return _Affine(scale, bias - mean * scale)
    if len(op.inputs) != 2 or set(op.attributes) - {"truncate"}:
        return None
    operand = _by_channel(weights.get(op.inputs[1 - position]), channels, axis, rank)
    if operand is None:
        return None
    affine = scale_and_shift(op.kind, position, operand, torch.ones_like(operand))
    return None if affine is None else _Affine(*affine)


def scale_and_shift(kind: str, position: int, operand: _T, one: _T) -> tuple[_T, _T] | None:
    """What arithmetic of ``kind`` applies to its operand at ``position``; it has another one."""
    zero = one * 0
    match kind, position:
        case "aten.add", _:
            return one, operand
        case "aten.sub", 0:
            return one, -operand
        case "aten.sub", 1:
            return -one, operand
        case "aten.mul", _:
            return operand, zero
        case "aten.div", 0:
            return one / operand, zero
    return None


def _by_channel(operand: Tensor | None, channels: int, axis: int, rank: int) -> Tensor | None:
    """A constant that broadcasts along every axis but the channels', as [channels]; else None."""
    if operand is None or not operand.is_floating_point() or operand.dim() > rank:
        return None
    place = operand.dim() - 1 if axis == -1 else operand.dim() - (rank - 1)
    for at, extent in enumerate(operand.shape):
        if extent != 1 and (at != place or extent != channels):
            return None
    return operand.double().flatten().expand(channels).clone()


def _absorb(
    producer: Operator, affine: _Affine, output: str, weights: dict[str, Tensor]
) -> Operator | None:
    """``producer`` with ``affine`` applied to its parameters.

    None if that overflows its type, or would scale a weight in integers.
    """
    names = [*producer.inputs[1:3], ""][:2]
    weight = weights.get(names[0])
    dtype = torch.float32 if weight is None else weight.dtype
    bias = weights[names[1]].double() if names[1] else torch.zeros_like(affine.shift)
    shifted = (bias * affine.scale + affine.shift).to(dtype)
    inputs = list(producer.inputs)
    if not torch.isfinite(shifted).all():
        return None
    if not torch.all(affine.scale == 1):
        if weight is None:
            return None
        scaled = _scale_channels(producer, weight.double(), affine.scale).to(dtype)
        if not torch.isfinite(scaled).all():
            return None
        inputs[1] = fresh(f"{output}.weight", weights)
        weights[inputs[1]] = scaled.contiguous()
    bias_name = fresh(f"{output}.bias", weights)
    weights[bias_name] = shifted
    inputs[2:3] = [bias_name]
    return dataclasses.replace(producer, inputs=tuple(inputs), outputs=(output,))


def _scale_channels(producer: Operator, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply the part of the weight that makes each output channel."""
    if producer.kind == _NORM:
        return weight * scale
    ones = (1,) * (weight.dim() - 2)
    if producer.kind == _CONVOLUTION and producer.attributes.get("transposed", False):
        # [in, out / groups, *kernel]: output channels are numbered group by group
        groups = producer.attributes.get("groups", 1)
        assert isinstance(groups, int)
        by_group = weight.reshape(groups, -1, *weight.shape[1:])
        return (by_group * scale.reshape(groups, 1, -1, *ones)).reshape(weight.shape)
    return weight * scale.reshape(-1, 1, *ones)
