"""SqueezeNet 1.1 (Iandola et al., 2016).

    x ──> squeeze 1x1 ──┬──> expand 1x1 ──┐
                        └──> expand 3x3 ──┴─ concat ──>        fire module

Output: logits [batch, 1000].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Layout:
    """One published version: the stem, then (squeeze, expand) per fire module, None for a pool."""

    stem_channels: int
    stem_kernel: int
    stem_padding: int
    modules: Sequence[tuple[int, int] | None]


SQUEEZENET_1_1 = Layout(
    stem_channels=64,
    stem_kernel=3,
    stem_padding=0,
    modules=(
        *((16, 64), (16, 64), None),
        *((32, 128), (32, 128), None),
        *((48, 192), (48, 192), (64, 256), (64, 256)),
    ),
)


class Fire(nn.Module):
    """Squeeze to few channels, expand by 1x1 and 3x3 side by side. ``expand`` is per branch."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, channels, h, w] to [batch, 2 * expand, h, w]."""
        squeezed = torch.relu(self.squeeze(x))
        return torch.cat(
            [torch.relu(self.expand1x1(squeezed)), torch.relu(self.expand3x3(squeezed))], dim=1
        )


class SqueezeNet(nn.Module):
    """Image classifier without fully connected layers, for [batch, 3, 224, 224]."""

    def __init__(
        self,
        layout: Layout = SQUEEZENET_1_1,
        fire: Callable[[int, int, int], nn.Module] = Fire,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        channels = layout.stem_channels
        stem = nn.Conv2d(3, channels, layout.stem_kernel, stride=2, padding=layout.stem_padding)
        body: list[nn.Module] = [stem, nn.ReLU(), nn.MaxPool2d(3, 2)]
        for module in layout.modules:
            if module is None:
                body.append(nn.MaxPool2d(3, 2))
                continue
            squeeze, expand = module
            body.append(fire(channels, squeeze, expand))
            channels = 2 * expand
        self.features = nn.Sequential(*body)
        self.classifier = nn.Conv2d(channels, classes, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, classes]; not negative, since the last convolution has a ReLU."""
        x = torch.relu(self.classifier(self.features(image)))
        logits: Tensor = self.pool(x).flatten(1)
        return logits
