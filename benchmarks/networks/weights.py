"""Seeded weights that keep activations well-conditioned through any depth.

Published weights would need a download; what scheduling and numerics need is only that activations
neither explode nor vanish, and that two rows of a batch never look alike. So each layer is drawn
such that it keeps the second moment of its input (He et al., 2015):

    E[w^2] = gain^2 / fan_in,   gain = sqrt(2) beside a ReLU, 1 elsewhere

Batch norms carry statistics that differ per channel, so that folding them wrongly shows.

All draws are uniform: uniform floats are exact functions of the generator's integers, so the
weights are the same bits on every CPU; normal draws go through logarithms, whose last bit varies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

RELU_GAIN = math.sqrt(2.0)
"""Gain that makes up for the half of the second moment that a ReLU removes."""


def with_gain(module: M, gain: float) -> M:
    """Let ``seed_weights`` scale the output of ``module`` by ``gain``.

    Unset, it is RELU_GAIN for convolutions and 1 for all else.
    """
    object.__setattr__(module, "_gain", gain)
    return module


def build_seeded(construct: Callable[[], M], seed: int) -> M:
    """Construct a network without touching torch's global generator, and seed its weights.

    The result is in eval mode and asks for no gradients.
    """
    with torch.device("meta"):
        model = construct()
    model.to_empty(device="cpu")
    seed_weights(model, seed)
    return model.eval().requires_grad_(requires_grad=False)


def seed_weights(model: nn.Module, seed: int) -> None:
    """Overwrite every parameter and buffer of ``model`` with draws that depend on ``seed`` only.

    Modules with parameters of their own define ``draw_weights(uniform)`` and fill them there.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(tensor: Tensor, low: float, high: float) -> None:
        with torch.no_grad():
            tensor.uniform_(low, high, generator=generator)

    for name, module in model.named_modules():
        tensors = dict(module.named_parameters(recurse=False))
        tensors |= {n: b for n, b in module.named_buffers(recurse=False) if n not in tensors}
        if not tensors:
            continue
        gain = module.__dict__.get("_gain")
        match module:
            case nn.Conv2d():
                _spread(uniform, module.weight, RELU_GAIN if gain is None else gain)
                if module.bias is not None:
                    uniform(module.bias, -0.1, 0.1)
            case nn.Linear():
                _spread(uniform, module.weight, 1.0 if gain is None else gain)
                if module.bias is not None:
                    uniform(module.bias, -0.1, 0.1)
            case nn.Embedding():
                limit = math.sqrt(3.0) * (1.0 if gain is None else gain)
                uniform(module.weight, -limit, limit)
            case nn.LayerNorm():
                uniform(module.weight, 0.8, 1.2)
                uniform(module.bias, -0.1, 0.1)
            case nn.BatchNorm2d():
                _draw_batch_norm(uniform, module, 1.0 if gain is None else gain)
            case _ if hasattr(module, "draw_weights"):
                module.draw_weights(uniform)
            case _:
                raise TypeError(f"no rule to draw the weights of {name!r}: {type(module).__name__}")


def _spread(uniform: Callable[[Tensor, float, float], None], weight: Tensor, gain: float) -> None:
    """Draw ``weight`` [outputs, inputs, ...]: mean 0, standard deviation gain / sqrt(fan_in)."""
    limit = gain * math.sqrt(3.0 / weight[0].numel())
    uniform(weight, -limit, limit)


def _draw_batch_norm(
    uniform: Callable[[Tensor, float, float], None], norm: nn.BatchNorm2d, gain: float
) -> None:
    """Statistics under which E[gamma^2 / variance] = 1.00, so that depth does not add up."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    uniform(norm.weight, 0.8 * gain, 1.2 * gain)
    uniform(norm.bias, -0.1 * gain, 0.1 * gain)
    uniform(norm.running_mean, -0.1, 0.1)
    uniform(norm.running_var, 0.7, 1.4)
    norm.num_batches_tracked.zero_()
