"""ShuffleNet V2 with half the channels (Ma et al., 2018).

    x ──halves──> as it is ──────────────────────> concatenated, channels interleaved      unit
         └──────> 1x1 ──> depthwise 3x3 ──> 1x1 ──────┘

A unit of stride 2 gives its whole input to both branches, and the first one is convolved as well.
The structure is that of torchvision's ``shufflenet_v2_x0_5``. Output: logits [batch, 1000].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.layers import Classifier, ConvNorm
from benchmarks.networks.weights import RELU_GAIN

# Of a convolution behind a depthwise one, whose output no ReLU has halved.
_LINEAR_INPUT_GAIN = 1 / RELU_GAIN


def _depthwise(channels: int, stride: int) -> nn.Sequential:
    """3x3 convolution of each channel by itself and batch norm, without a ReLU."""
    convolution = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels))


class ShuffleUnit(nn.Module):
    """Two branches whose channels alternate in the output."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.halves_input = stride == 1
        self.short = (
            nn.Identity()
            if self.halves_input
            else nn.Sequential(
                _depthwise(inputs, stride), ConvNorm(inputs, half, 1, gain=_LINEAR_INPUT_GAIN)
            )
        )
        self.long = nn.Sequential(
            ConvNorm(half if self.halves_input else inputs, half, 1),
            _depthwise(half, stride),
            ConvNorm(half, half, 1, gain=_LINEAR_INPUT_GAIN),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs, h, w] to [batch, outputs, h / stride, w / stride]."""
        first, second = x.chunk(2, dim=1) if self.halves_input else (x, x)
        both = torch.cat([self.short(first), self.long(second)], dim=1)
        channels, height, width = map(int, both.shape[1:])
        pairs = both.reshape(-1, 2, channels // 2, height, width)
        return pairs.transpose(1, 2).reshape(-1, channels, height, width)


class ShuffleNet(nn.Module):
    """Image classifier for [batch, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        units: list[nn.Module] = []
        channels = 24
        for outputs, repeats in ((48, 4), (96, 8), (192, 4)):
            for index in range(repeats):
                units.append(ShuffleUnit(channels, outputs, 2 if index == 0 else 1))
                channels = outputs
        self.stem = nn.Sequential(
            ConvNorm(3, 24, 3, stride=2, padding=1, gain=_LINEAR_INPUT_GAIN),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.units = nn.Sequential(*units)
        self.head = ConvNorm(channels, 1024, 1)
        self.classifier = Classifier(1024, classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.head(self.units(self.stem(image))))
        return logits
