"""Inception V3 as used for inference: no auxiliary classifier (Szegedy et al., 2016).

    stem: 5 convolutions, 2 pools         299 -> 35
    A x 3   1x1 | 5x5 | double 3x3 | pool       35 x 35
    B       3x3 | double 3x3 | pool             35 -> 17
    C x 4   1x1 | 7x7 | double 7x7 | pool       17 x 17, each 7x7 as 1x7 and 7x1
    D       3x3 | 7x7 + 3x3 | pool              17 -> 8
    E x 2   1x1 | 3x3 | double 3x3 | pool       8 x 8, the last 3x3 as 1x3 beside 3x1

Every convolution is followed by batch norm and ReLU. Output: logits [batch, 1000].
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.networks.layers import Branches, Classifier, ConvNorm


def _average() -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride=1, padding=1)


def block_a(inputs: int, pool_channels: int) -> Branches:
    """35 x 35 block."""
    return Branches(
        ConvNorm(inputs, 64, 1),
        nn.Sequential(ConvNorm(inputs, 48, 1), ConvNorm(48, 64, 5, padding=2)),
        nn.Sequential(
            ConvNorm(inputs, 64, 1),
            ConvNorm(64, 96, 3, padding=1),
            ConvNorm(96, 96, 3, padding=1),
        ),
        nn.Sequential(_average(), ConvNorm(inputs, pool_channels, 1)),
    )


def block_b(inputs: int) -> Branches:
    """Reduction from 35 x 35 to 17 x 17."""
    return Branches(
        ConvNorm(inputs, 384, 3, stride=2),
        nn.Sequential(
            ConvNorm(inputs, 64, 1),
            ConvNorm(64, 96, 3, padding=1),
            ConvNorm(96, 96, 3, stride=2),
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _row(inputs: int, outputs: int) -> ConvNorm:
    return ConvNorm(inputs, outputs, (1, 7), padding=(0, 3))


def _column(inputs: int, outputs: int) -> ConvNorm:
    return ConvNorm(inputs, outputs, (7, 1), padding=(3, 0))


def block_c(inputs: int, middle: int) -> Branches:
    """17 x 17 block; ``middle`` is the width of the 7x7 branches."""
    return Branches(
        ConvNorm(inputs, 192, 1),
        nn.Sequential(ConvNorm(inputs, middle, 1), _row(middle, middle), _column(middle, 192)),
        nn.Sequential(
            ConvNorm(inputs, middle, 1),
            _column(middle, middle),
            _row(middle, middle),
            _column(middle, middle),
            _row(middle, 192),
        ),
        nn.Sequential(_average(), ConvNorm(inputs, 192, 1)),
    )


def block_d(inputs: int) -> Branches:
    """Reduction from 17 x 17 to 8 x 8."""
    return Branches(
        nn.Sequential(ConvNorm(inputs, 192, 1), ConvNorm(192, 320, 3, stride=2)),
        nn.Sequential(
            ConvNorm(inputs, 192, 1),
            _row(192, 192),
            _column(192, 192),
            ConvNorm(192, 192, 3, stride=2),
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _cross(inputs: int) -> Branches:
    return Branches(
        ConvNorm(inputs, 384, (1, 3), padding=(0, 1)),
        ConvNorm(inputs, 384, (3, 1), padding=(1, 0)),
    )


def block_e(inputs: int) -> Branches:
    """8 x 8 block."""
    return Branches(
        ConvNorm(inputs, 320, 1),
        nn.Sequential(ConvNorm(inputs, 384, 1), _cross(384)),
        nn.Sequential(ConvNorm(inputs, 448, 1), ConvNorm(448, 384, 3, padding=1), _cross(384)),
        nn.Sequential(_average(), ConvNorm(inputs, 192, 1)),
    )


class InceptionV3(nn.Module):
    """Image classifier for [batch, 3, 299, 299]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvNorm(3, 32, 3, stride=2),
            ConvNorm(32, 32, 3),
            ConvNorm(32, 64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            ConvNorm(64, 80, 1),
            ConvNorm(80, 192, 3),
            nn.MaxPool2d(3, stride=2),
        )
        self.blocks = nn.Sequential(
            block_a(192, pool_channels=32),
            block_a(256, pool_channels=64),
            block_a(288, pool_channels=64),
            block_b(288),
            block_c(768, middle=128),
            block_c(768, middle=160),
            block_c(768, middle=160),
            block_c(768, middle=192),
            block_d(768),
            block_e(1280),
            block_e(2048),
        )
        self.classifier = Classifier(2048, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, classes]."""
        logits: Tensor = self.classifier(self.blocks(self.stem(image)))
        return logits
