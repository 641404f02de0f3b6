"""The benchmark networks by name, each with the inputs that a benchmark feeds it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks import deepfm
from benchmarks.networks.bert import BertConfig, BertEncoder
from benchmarks.networks.googlenet import GoogLeNet
from benchmarks.networks.inception_v3 import InceptionV3
from benchmarks.networks.nasnet import nasnet_large, nasnet_mobile
from benchmarks.networks.randwire import RandWire
from benchmarks.networks.resnet import ResNet50
from benchmarks.networks.squeezenet import SQUEEZENET_1_0, Bypass, SqueezeNet
from benchmarks.networks.t5 import T5Config, T5Encoder
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
        """The network in eval mode with seeded weights."""
        return build_seeded(self.construct, seed)

    def example_inputs(self, batch: int, *, seed: int = 0) -> tuple[Tensor, ...]:
        """Inputs in the order of ``input_names``; the same for the same batch and seed."""
        inputs = self.draw(batch, torch.Generator().manual_seed(seed))
        assert len(inputs) == len(self.input_names)
        return inputs


def _images(side: int) -> Draw:
    """Images [batch, 3, side, side] with zero mean and unit variance: coarse patches plus noise.

    White noise alone would not do: after the final pooling all its rows look the same.
    """

    def draw(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        patches = torch.randn(batch, 3, 7, 7, generator=generator)
        noise = torch.randn(batch, 3, side, side, generator=generator)
        coarse = nn.functional.interpolate(patches, size=(side, side), mode="nearest")
        return ((0.75**0.5) * coarse + 0.5 * noise,)

    return draw


def _classifier(name: str, construct: Callable[[], nn.Module], side: int) -> Network:
    return Network(name, construct, _images(side), ("image",), ("logits",))


def _squeezenet_bypass() -> nn.Module:
    return SqueezeNet(SQUEEZENET_1_0, Bypass.COMPLEX)


def _tokens(vocabulary: int, sequence: int) -> Draw:
    """Token ids, the rows padded to different lengths, and the mask that says so."""

    def draw(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        ids = torch.randint(0, vocabulary, (batch, sequence), generator=generator)
        lengths = torch.randint(sequence // 2, sequence + 1, (batch, 1), generator=generator)
        mask = (torch.arange(sequence) < lengths).to(torch.int64)
        return ids * mask, mask

    return draw


def _encoder(
    name: str, construct: Callable[[], nn.Module], config: BertConfig | T5Config
) -> Network:
    draw = _tokens(config.vocabulary, config.sequence)
    return Network(name, construct, draw, ("input_ids", "attention_mask"), ("last_hidden_state",))


def _clicks(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Categories and numbers of one shown advertisement per row."""
    categories = torch.randint(0, 10_000, (batch, deepfm.CATEGORIES), generator=generator)
    return categories, torch.randn(batch, deepfm.NUMBERS, generator=generator)


NETWORKS: Mapping[str, Network] = {
    network.name: network
    for network in (
        _classifier("squeezenet", SqueezeNet, 224),
        _classifier("squeezenet_bypass", _squeezenet_bypass, 224),
        _classifier("googlenet", GoogLeNet, 224),
        _classifier("inception_v3", InceptionV3, 299),
        _classifier("randwire", functools.partial(RandWire, 154), 224),
        _classifier("randwire_small", functools.partial(RandWire, 78, small=True), 224),
        _classifier("nasnet_mobile", nasnet_mobile, 224),
        _classifier("nasnet_large", nasnet_large, 331),
        _classifier("resnet50", ResNet50, 224),
        _encoder("bert_base", BertEncoder, BertConfig()),
        _encoder("t5_encoder", T5Encoder, T5Config()),
        Network("deepfm", deepfm.DeepFM, _clicks, ("categories", "numbers"), ("logit",)),
    )
}
