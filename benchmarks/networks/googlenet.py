"""GoogLeNet with batch norm, without auxiliary classifiers (Szegedy et al., 2015).

    x ──┬──> 1x1 ───────────────┐
        ├──> 1x1 ──> 3x3 ───────┤
        ├──> 1x1 ──> 3x3 ───────┼─ concat ──>      inception module
        └──> max pool ──> 1x1 ──┘

The third branch is 3x3, not the paper's 5x5, as in torchvision's model, which Opara and others
measure and whose published parameter count is matched here. Output: logits [batch, 1000].
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.networks.layers import Branches, Classifier, ConvNorm

# The maximum of nine is larger than one; this takes it back.
_POOLED_GAIN = 0.5


def inception(
    inputs: int, one: int, reduce2: int, three2: int, reduce3: int, three3: int, pool: int
) -> Branches:
    """One module; the numbers are the widths in the order of the paper's Table 1."""
    return Branches(
        ConvNorm(inputs, one, 1),
        nn.Sequential(ConvNorm(inputs, reduce2, 1), ConvNorm(reduce2, three2, 3, padding=1)),
        nn.Sequential(ConvNorm(inputs, reduce3, 1), ConvNorm(reduce3, three3, 3, padding=1)),
        nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True),
            ConvNorm(inputs, pool, 1, gain=_POOLED_GAIN),
        ),
    )


class GoogLeNet(nn.Module):
    """Image classifier for [batch, 3, 224, 224]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(3, 64, 7, stride=2, padding=3),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            ConvNorm(64, 64, 1, gain=_POOLED_GAIN),
            ConvNorm(64, 192, 3, padding=1),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            inception(192, 64, 96, 128, 16, 32, 32),
            inception(256, 128, 128, 192, 32, 96, 64),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            inception(480, 192, 96, 208, 16, 48, 64),
            inception(512, 160, 112, 224, 24, 64, 64),
            inception(512, 128, 128, 256, 24, 64, 64),
            inception(512, 112, 144, 288, 32, 64, 64),
            inception(528, 256, 160, 320, 32, 128, 128),
            nn.MaxPool2d(2, stride=2, ceil_mode=True),
            inception(832, 256, 160, 320, 32, 128, 128),
            inception(832, 384, 192, 384, 48, 128, 128),
        )
        self.classifier = Classifier(1024, classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(image))
        return logits
