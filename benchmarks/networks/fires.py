"""Networks of a few of SqueezeNet's fire modules on small images: what is quick to register."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from benchmarks.networks.network import Network, classifier
from benchmarks.networks.squeezenet import Fire


class Fires(nn.Module):
    """Fire modules of four units each, then a pool and a layer."""

    def __init__(self, count: int, classes: int = 10) -> None:
        super().__init__()
        self.fires = nn.Sequential(*(Fire(64 if place else 3, 16, 32) for place in range(count)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(64, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.pool(self.fires(image)).flatten(1))  # type: ignore[no-any-return]


FIRES: Mapping[str, Network] = {
    "six": classifier("six", partial(Fires, 1), 32),
    "forty": classifier("forty", partial(Fires, 9), 32),
}
"""By name; the number of units is about that."""
