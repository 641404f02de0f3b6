"""Description of a network with its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks.weights import build_seeded

Draw = Callable[[int, torch.Generator], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Network:
    """A network that can be built and fed without knowing which one it is.

    ``construct()`` returns it with torch's own initial weights, ``build(seed)`` ready to run.
    ``draw(batch, generator)`` returns its inputs: dimension 0 of each is the batch, rows differ.
    """

    name: str
    construct: Callable[[], nn.Module]
    draw: Draw
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]

    def build(self, seed: int = 0) -> nn.Module:
        return build_seeded(self.construct, seed)

    def example_inputs(self, batch: int, *, seed: int = 0) -> tuple[Tensor, ...]:
        """Inputs in the order of ``input_names``; the same for the same batch and seed."""
        inputs = self.draw(batch, torch.Generator().manual_seed(seed))
        assert len(inputs) == len(self.input_names)
        return inputs


def images(side: int) -> Draw:
    """Images [batch, 3, side, side] with zero mean and unit variance: coarse patches plus noise.

    White noise alone would not do: after the final pooling all its rows look the same.
    """

    def draw(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        patches = torch.randn(batch, 3, 7, 7, generator=generator)
        noise = torch.randn(batch, 3, side, side, generator=generator)
        coarse = nn.functional.interpolate(patches, size=(side, side), mode="nearest")
        return ((0.75**0.5) * coarse + 0.5 * noise,)

    return draw


def classifier(name: str, construct: Callable[[], nn.Module], side: int) -> Network:
    """Describe a network from images [batch, 3, side, side] to logits [batch, classes]."""
    return Network(name, construct, images(side), ("image",), ("logits",))
