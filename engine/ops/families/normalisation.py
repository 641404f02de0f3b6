"""Normalisations over batches (with stored statistics), layers, groups and channels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.kinds import operator


@operator("aten.batch_norm")
def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, eps: float
) -> Tensor:
    """Compute (x - mean) / sqrt(var + eps) * weight + bias by channel (axis 1), all stored."""
    return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)


@operator("aten.layer_norm")
def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None = None, *, axis: int, eps: float
) -> Tensor:
    """Normalise over all axes from ``axis`` on; weight and bias broadcast."""
    shape = x.shape[axis:]
    fits = all(t is None or t.shape == shape for t in (weight, bias))
    if fits:
        return F.layer_norm(x, shape, weight, bias, eps)
    y = F.layer_norm(x, shape, None, None, eps)
    y = y * weight if weight is not None else y
    return y + bias if bias is not None else y


@operator("braid.layer_norm_statistics")
def layer_norm_statistics(x: Tensor, axis: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation, the optional outputs of LayerNormalization."""
    dims = list(range(axis % x.dim(), x.dim()))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    var, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    return mean, torch.rsqrt(var + eps)


@operator("braid.rms_norm")
def rms_norm(x: Tensor, weight: Tensor, axis: int, eps: float) -> Tensor:
    dims = list(range(axis % x.dim(), x.dim()))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    y = wide * torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)
    return y.to(x.dtype) * weight


@operator("braid.instance_norm")
def instance_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise each channel of each image over its own positions."""
    return torch.group_norm(x, x.shape[1], weight, bias, eps)  # F refuses single positions


@operator("braid.group_norm")
def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """Takes weight and bias of any shape."""
    weight, bias = (by_channel(t, x.shape[1]) for t in (weight, bias))
    return torch.group_norm(x, groups, weight, bias, eps)


def by_channel(numbers: Tensor, channels: int) -> Tensor:
    """Numbers by channel or by group of channels, as [channels]."""
    return numbers.reshape(-1).repeat_interleave(channels // max(1, numbers.numel()))


@operator("braid.lrn")
def lrn(x: Tensor, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """ONNX centres an even window one channel later than torch does."""
    before, after = (size - 1) // 2, size // 2
    channels = x.shape[1]
    squares = (x * x).reshape(x.shape[0], 1, channels, -1)
    padded = F.pad(squares, [0, 0, before, after])
    mean = F.avg_pool2d(padded, (size, 1), stride=1).reshape(x.shape)
    return x / torch.pow(bias + alpha * mean, beta)
