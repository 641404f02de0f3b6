"""The benchmark networks by name, each with the inputs that a benchmark feeds it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.networks import deepfm
from benchmarks.networks.bert import BertConfig, BertEncoder
from benchmarks.networks.detr_like import DetrLike
from benchmarks.networks.googlenet import GoogLeNet
from benchmarks.networks.inception_v3 import InceptionV3
from benchmarks.networks.mnasnet import MnasNet, MnasNetPair
from benchmarks.networks.nasnet import nasnet_large, nasnet_mobile
from benchmarks.networks.network import Draw, Network, classifier, images
from benchmarks.networks.randwire import RandWire
from benchmarks.networks.resnet import ResNet50
from benchmarks.networks.shufflenet import ShuffleNet
from benchmarks.networks.squeezenet import SqueezeNet
from benchmarks.networks.squeezenet_bypass import squeezenet_bypass
from benchmarks.networks.t5 import T5Config, T5Encoder


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


def _image_pairs(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    draw = images(224)
    return *draw(batch, generator), *draw(batch, generator)


def _clicks(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Categories and numbers of one shown advertisement per row."""
    categories = torch.randint(0, 10_000, (batch, deepfm.CATEGORIES), generator=generator)
    return categories, torch.randn(batch, deepfm.NUMBERS, generator=generator)


NETWORKS: Mapping[str, Network] = {
    network.name: network
    for network in (
        classifier("squeezenet", SqueezeNet, 224),
        classifier("squeezenet_bypass", squeezenet_bypass, 224),
        classifier("googlenet", GoogLeNet, 224),
        classifier("inception_v3", InceptionV3, 299),
        classifier("randwire", functools.partial(RandWire, 154), 224),
        classifier("randwire_small", functools.partial(RandWire, 78, small=True), 224),
        classifier("nasnet_mobile", nasnet_mobile, 224),
        classifier("nasnet_large", nasnet_large, 331),
        classifier("mnasnet", MnasNet, 224),
        Network("mnasnet_pair", MnasNetPair, _image_pairs, ("first", "second"), ("logits",)),
        classifier("shufflenet", ShuffleNet, 224),
        classifier("resnet50", ResNet50, 224),
        _encoder("bert_base", BertEncoder, BertConfig()),
        _encoder("t5_encoder", T5Encoder, T5Config()),
        classifier("detr_like", DetrLike, 192),
        Network("deepfm", deepfm.DeepFM, _clicks, ("categories", "numbers"), ("logit",)),
    )
}


def inputs_of(network: Network, batch: int = 1, seed: int = 0) -> dict[str, Tensor]:
    """Example inputs by name."""
    return dict(zip(network.input_names, network.example_inputs(batch, seed=seed), strict=True))


def arrays_of(network: Network, batch: int = 1, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """``inputs_of`` for libraries that take numpy."""
    return {name: tensor.numpy() for name, tensor in inputs_of(network, batch, seed).items()}
