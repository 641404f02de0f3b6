"""ResNet-50: the stride sits in the 3x3 convolution, as in torchvision (He et al., 2016).

    x ──> 1x1 ──> 3x3 ──> 1x1 ──> (+) ──> ReLU ──>      bottleneck
    └───── identity, or 1x1 ───────┘

Output: logits [batch, 1000].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.layers import Classifier, ConvNorm
from benchmarks.networks.weights import with_gain

# A branch this small against its shortcut keeps sixteen additions from piling up.
_BRANCH_GAIN = 0.25


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; 3x3 with ``width`` channels, then 4 times as many."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = ConvNorm(inputs, width, 1)
        self.convolve = ConvNorm(width, width, 3, stride=stride, padding=1)
        self.expand = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm = with_gain(nn.BatchNorm2d(outputs), _BRANCH_GAIN)
        self.shortcut = (
            nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
            if stride != 1 or inputs != outputs
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs, h, w] to [batch, 4 * width, h / stride, w / stride]."""
        branch = self.norm(self.expand(self.convolve(self.reduce(x))))
        return torch.relu(branch + self.shortcut(x))


class ResNet50(nn.Module):
    """Image classifier for [batch, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 64
        for width, repeats in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for index in range(repeats):
                stride = 2 if index == 0 and width != 64 else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = 4 * width
        self.stem = nn.Sequential(
            ConvNorm(3, 64, 7, stride=2, padding=3, gain=0.5),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.blocks = nn.Sequential(*blocks)
        self.classifier = Classifier(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.blocks(self.stem(image)))
        return logits
