"""T5-base encoder (Raffel et al., 2020): pre-norm, relative position bias, no biases in linears.

    x ──> norm ──> attention ──(+ x)──> norm ──> linear, ReLU, linear ──(+)──>

Inputs: input_ids and attention_mask, int64 [batch, sequence]; mask 1 for tokens, 0 for padding.
Output: last_hidden_state [batch, sequence, 768].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks.weights import RELU_GAIN, with_gain

# What each sublayer adds is small beside the sum that 24 of them make.
_RESIDUAL_GAIN = 0.5


@dataclass(frozen=True, slots=True)
class T5Config:
    """Sizes; the defaults are T5-base."""

    vocabulary: int = 32128
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    head_size: int = 64
    intermediate: int = 3072
    buckets: int = 32
    max_distance: int = 128
    sequence: int = 128  # tokens per row; fixed, so that only the batch stays open


class RootMeanSquareNorm(nn.Module):
    """Scale to unit root mean square; no mean is subtracted, no bias added."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def draw_weights(self, uniform: Callable[[Tensor, float, float], None]) -> None:
        uniform(self.weight, 0.8, 1.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def position_bucket(distance: int, buckets: int, max_distance: int) -> int:
    """Bucket of key position minus query position: exact when near, logarithmic when far."""
    half = buckets // 2
    offset, distance = (half if distance > 0 else 0), abs(distance)
    exact = half // 2
    if distance < exact:
        return offset + distance
    steps = math.log(distance / exact) / math.log(max_distance / exact) * (half - exact)
    return offset + min(exact + int(steps), half - 1)


class PositionBias(nn.Module):
    """What the distance between two tokens adds to their score, per head; shared by all layers."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.buckets, config.heads)
        self.index = nn.Buffer(torch.empty(config.sequence, config.sequence, dtype=torch.int64))

    def draw_weights(self, _: Callable[[Tensor, float, float], None]) -> None:
        """Fill in the buckets, which are not drawn."""
        c = self.config
        by_distance = {
            d: position_bucket(d, c.buckets, c.max_distance)
            for d in range(1 - c.sequence, c.sequence)
        }
        places = range(c.sequence)
        self.index.copy_(torch.tensor([[by_distance[key - q] for key in places] for q in places]))

    def forward(self) -> Tensor:
        """Return [1, heads, sequence, sequence]."""
        bias: Tensor = self.table(self.index)
        return bias.permute(2, 0, 1)[None]


class Layer(nn.Module):
    """Self-attention, then the feed-forward network, each with its norm and residual."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        inner = config.heads * config.head_size
        self.split = (-1, config.sequence, config.heads, config.head_size)
        self.attention_norm = RootMeanSquareNorm(config.hidden)
        # Scores are not divided by the root of the head size: the weights are, as T5 draws them.
        query = nn.Linear(config.hidden, inner, bias=False)
        self.query = with_gain(query, config.head_size**-0.5)
        self.key = nn.Linear(config.hidden, inner, bias=False)
        self.value = nn.Linear(config.hidden, inner, bias=False)
        self.output = with_gain(nn.Linear(inner, config.hidden, bias=False), _RESIDUAL_GAIN)
        self.feed_norm = RootMeanSquareNorm(config.hidden)
        widen = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.widen = with_gain(widen, RELU_GAIN)
        narrow = nn.Linear(config.intermediate, config.hidden, bias=False)
        self.narrow = with_gain(narrow, _RESIDUAL_GAIN)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map [batch, sequence, hidden]; ``bias`` is added to the scores of every head."""
        normed = self.attention_norm(x)
        q = self.query(normed).reshape(self.split).transpose(1, 2)
        k = self.key(normed).reshape(self.split).permute(0, 2, 3, 1)
        v = self.value(normed).reshape(self.split).transpose(1, 2)
        mixed = torch.matmul(torch.softmax(torch.matmul(q, k) + bias, dim=-1), v)
        x = x + self.output(
            mixed.transpose(1, 2).reshape(-1, self.split[1], self.split[2] * self.split[3])
        )
        fed: Tensor = self.narrow(torch.relu(self.widen(self.feed_norm(x))))
        return x + fed


class T5Encoder(nn.Module):
    """The encoder; ``config.sequence`` tokens per row."""

    def __init__(self, config: T5Config | None = None) -> None:
        super().__init__()
        config = config or T5Config()
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.position_bias = PositionBias(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RootMeanSquareNorm(config.hidden)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        masked = (1.0 - attention_mask.to(torch.float32))[:, None, None, :] * -10000.0
        bias = self.position_bias() + masked
        x: Tensor = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x, bias)
        normed: Tensor = self.norm(x)
        return normed
