"""MNASNet-B1, the one without squeeze and excitation, with half the channels (Tan et al., 2019).

    x ──> 1x1, wider ──> depthwise 3x3 or 5x5 ──> 1x1, narrow ──(+)──>      inverted residual
    └────────────────── where the shapes agree ──────────────────┘

The structure is that of torchvision's ``mnasnet0_5``. Output: logits [batch, 1000].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.layers import Classifier, ConvNorm
from benchmarks.networks.weights import RELU_GAIN, with_gain

# A block's input comes from a sum, not from a ReLU whose lost half the gain would make up for.
_LINEAR_INPUT_GAIN = 1 / RELU_GAIN

# A branch this small against its shortcut keeps three additions in a row from piling up.
_BRANCH_GAIN = 0.5


def _depthwise(channels: int, kernel: int, stride: int) -> ConvNorm:
    return ConvNorm(channels, channels, kernel, stride=stride, padding=kernel // 2, groups=channels)


def _project(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """1x1 convolution and batch norm, without a ReLU."""
    norm = with_gain(nn.BatchNorm2d(outputs), gain)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), norm)


class InvertedResidual(nn.Module):
    """Widen the channels, convolve each by itself, narrow; added to the input if that fits."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        self.adds = inputs == outputs and stride == 1
        width = widening * inputs
        self.branch = nn.Sequential(
            ConvNorm(inputs, width, 1, gain=_LINEAR_INPUT_GAIN),
            _depthwise(width, kernel, stride),
            _project(width, outputs, _BRANCH_GAIN if self.adds else 1.0),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs, h, w] to [batch, outputs, h / stride, w / stride]."""
        branch: Tensor = self.branch(x)
        return x + branch if self.adds else branch


class MnasNet(nn.Module):
    """Image classifier for [batch, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 8
        # Half of 24, 40, 80, 96, 192 and 320 channels, rounded to multiples of eight.
        for outputs, kernel, stride, widening, repeats in (
            (16, 3, 2, 3, 3),
            (24, 5, 2, 3, 3),
            (40, 5, 2, 6, 3),
            (48, 3, 1, 6, 2),
            (96, 5, 2, 6, 4),
            (160, 3, 1, 6, 1),
        ):
            for index in range(repeats):
                step = stride if index == 0 else 1
                blocks.append(InvertedResidual(channels, outputs, kernel, step, widening))
                channels = outputs
        self.stem = nn.Sequential(
            ConvNorm(3, 16, 3, stride=2, padding=1), _depthwise(16, 3, 1), _project(16, 8, 1.0)
        )
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNorm(channels, 1280, 1, gain=_LINEAR_INPUT_GAIN)
        self.classifier = Classifier(1280, classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.head(self.blocks(self.stem(image))))
        return logits


class MnasNetPair(nn.Module):
    """Two of them in one file, each with an image of its own: branches that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = MnasNet(), MnasNet()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the logits of both side by side, [batch, 2000]."""
        return torch.cat([self.first(first), self.second(second)], dim=1)
