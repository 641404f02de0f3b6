"""Two small networks over one image, in one file: what is in it, and where.

    image ──┬──> fire modules ──> pool ──> logits    [batch, 100]
            └──> fire modules ──> 1x1 ───> boxes     [batch, 5, 6, 6]: score, centre, size by cell

Neither reads from the other, so both can run at once. Their operators are small: each gains little
from a second core, and both together keep two cores busy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from braid.server.cli.local.demo_networks.squeezenet import Fire

SIDE = 96
CLASSES = 100
BOX = 5  # score, centre and size


def _body() -> nn.Sequential:
    """Map [batch, 3, SIDE, SIDE] to [batch, 256, 6, 6]."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        Fire(32, 16, 32), Fire(64, 16, 32), nn.MaxPool2d(2),
        Fire(64, 32, 64), Fire(128, 32, 64), nn.MaxPool2d(2),
        Fire(128, 48, 96), Fire(192, 48, 96), Fire(192, 64, 128),
    )  # fmt: skip


class ClassifierAndDetector(nn.Module):
    """Both networks; they share the image only."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(
            _body(), nn.Conv2d(256, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.detector = nn.Sequential(_body(), nn.Conv2d(256, BOX, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [batch, CLASSES] and boxes [batch, BOX, 6, 6]."""
        return self.classifier(image), torch.sigmoid(self.detector(image))
