"""BERT-base encoder: embeddings and twelve layers, without pooler and heads (Devlin et al., 2019).

    x ──┬──> Q ──┐
        ├──> K ──┼─ attention ──> linear ──(+ x)──> norm ──> linear, GELU, linear ──(+)──> norm
        └──> V ──┘

Inputs: input_ids and attention_mask, int64 [batch, sequence]; mask 1 for tokens, 0 for padding.
Output: last_hidden_state [batch, sequence, 768].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Sizes; the defaults are BERT-base, uncased."""

    vocabulary: int = 30522
    positions: int = 512
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    sequence: int = 128  # tokens per row; fixed, so that only the batch stays open


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised. All tokens are of segment 0."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.sequence = config.sequence
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.positions, config.hidden)
        self.segment = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map ids [batch, sequence] to [batch, sequence, hidden]."""
        # A token's position adds less than the token itself, or all rows would look alike.
        place = 0.3 * (self.position.weight[: self.sequence] + self.segment.weight[0])
        normed: Tensor = self.norm(self.word(input_ids) + place)
        return normed


class Attention(nn.Module):
    """Multi-head self-attention with its residual and norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.split = (-1, config.sequence, config.heads, config.hidden // config.heads)
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map [batch, sequence, hidden], adding ``bias`` [batch, 1, 1, sequence] to the scores."""
        q = self.query(x).reshape(self.split).transpose(1, 2)
        k = self.key(x).reshape(self.split).permute(0, 2, 3, 1)
        v = self.value(x).reshape(self.split).transpose(1, 2)
        scores = torch.matmul(q, k) / math.sqrt(self.split[-1]) + bias
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
        merged = mixed.transpose(1, 2).reshape(-1, self.split[1], self.split[2] * self.split[3])
        normed: Tensor = self.norm(self.output(merged) + x)
        return normed


class Layer(nn.Module):
    """Attention, then the feed-forward network with its residual and norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.widen = nn.Linear(config.hidden, config.intermediate)
        self.narrow = nn.Linear(config.intermediate, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention(x, bias)
        normed: Tensor = self.norm(self.narrow(functional.gelu(self.widen(x))) + x)
        return normed


class BertEncoder(nn.Module):
    """The encoder; ``config.sequence`` tokens per row."""

    def __init__(self, config: BertConfig | None = None) -> None:
        super().__init__()
        config = config or BertConfig()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        bias = (1.0 - attention_mask.to(torch.float32))[:, None, None, :] * -10000.0
        x: Tensor = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x
