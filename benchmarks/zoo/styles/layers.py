"""Layers that more than one of the networks is made of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Adds what ``inner`` makes of its input to that input."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


class Concatenated(nn.Module):
    """Concatenates what all branches make of one input, along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Mapped(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class First(nn.Module):
    """The first output of a recurrent layer: its states at all steps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x)[0]
        return states


def conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Return convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(conv(inputs, inputs, 3, stride, groups=inputs), conv(inputs, outputs, 1))


def halving(*channels: int) -> nn.Sequential:
    """Return convolutions that halve the image each."""
    return nn.Sequential(*(conv(a, b, 3, 2) for a, b in pairwise(channels)))


def perceptron(*widths: int) -> nn.Sequential:
    layers = (layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU()))
    return nn.Sequential(*list(layers)[:-1])


def pooled(body: nn.Module, channels: int, classes: int = 100) -> nn.Sequential:
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Attention(nn.Module):
    """Attention of a sequence to itself, [n, length, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.mixed(x).reshape(n, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(n, length, width))
        return mixed


def transformer(width: int, heads: int, layers: int) -> nn.Sequential:
    """Return layers of attention and feed-forward, normed before each."""
    return nn.Sequential(*(layer for _ in range(layers) for layer in (
        Residual(nn.LayerNorm(width), Attention(width, heads)),
        Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                 nn.Linear(4 * width, width)),
    )))  # fmt: skip
