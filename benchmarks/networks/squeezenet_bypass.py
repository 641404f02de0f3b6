"""SqueezeNet 1.0 with complex bypass, as IOS schedules it (Iandola et al., 2016).

x ──> squeeze 1x1 ──┬──> expand 1x1 ──┐
│                   └──> expand 3x3 ──┴─ concat ──> (+) ──>
└──────────── bypass (identity, or conv 1x1) ────────┘        fire module
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.squeezenet import Fire, Layout, SqueezeNet
from benchmarks.networks.weights import with_gain

SQUEEZENET_1_0 = Layout(
    stem_channels=96,
    stem_kernel=7,
    stem_padding=3,
    modules=(
        *((16, 64), (16, 64), (32, 128), None),
        *((32, 128), (48, 192), (48, 192), (64, 256), None),
        (64, 256),
    ),
)


class BypassFire(Fire):
    """Add to the fire module its input, by a 1x1 convolution where the channels change."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__(channels, squeeze, expand)
        # Half the gain: what is added must not double the activations from module to module.
        with_gain(self.expand1x1, 0.7)
        with_gain(self.expand3x3, 0.7)
        self.bypass: nn.Conv2d | None = None
        if channels != 2 * expand:
            self.bypass = with_gain(nn.Conv2d(channels, 2 * expand, 1), 0.7)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, channels, h, w] to [batch, 2 * expand, h, w]."""
        expanded = super().forward(x)
        return expanded + (x if self.bypass is None else torch.relu(self.bypass(x)))


def squeezenet_bypass() -> SqueezeNet:
    """SqueezeNet 1.0 with a complex bypass around each fire module."""
    return SqueezeNet(SQUEEZENET_1_0, BypassFire)
