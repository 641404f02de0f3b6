"""Separable convolution of RandWire and NASNet. Tensors are [batch, channels, height, width]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.weights import with_gain


class ReluSeparable(nn.Module):
    """ReLU, depthwise convolution, 1x1 convolution, batch norm: the "Relu-SepConv" of IOS.

    Padded so that stride 1 keeps the height and width.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            inputs, inputs, kernel, stride=stride, padding=kernel // 2, groups=inputs, bias=False
        )
        # Between the two convolutions there is no ReLU to make up for.
        self.pointwise = with_gain(nn.Conv2d(inputs, outputs, 1, bias=False), 1.0)
        self.norm = with_gain(nn.BatchNorm2d(outputs, eps=0.001), gain)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``inputs`` channels to ``outputs``, dividing height and width by the stride."""
        normed: Tensor = self.norm(self.pointwise(self.depthwise(torch.relu(x))))
        return normed
