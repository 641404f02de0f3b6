"""Layers that more than one network is made of. Tensors are [batch, channels, height, width]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.networks.weights import with_gain


class ConvNorm(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        *,
        gain: float = 1.0,
        **conv: Any,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **conv)
        self.norm = with_gain(nn.BatchNorm2d(outputs, eps=0.001), gain)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Branches(nn.Module):
    """Apply all branches to one input and concatenate along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Classifier(nn.Module):
    """Global average pooling, then one linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes]."""
        logits: Tensor = self.linear(self.pool(x).flatten(1))
        return logits
