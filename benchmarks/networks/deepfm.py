"""DeepFM for click-through rates, with the 39 fields of the Criteo data (Guo et al., 2017).

    field 1 ──> embedding ──┬──> first order: sum of weights ────────────────┐
    ...                     ├──> second order: ((sum)^2 - sum of squares)/2 ─┼─ (+) ──> logit
    field 39 ─> embedding ──┴──> 3 x 400 fully connected ────────────────────┘

Each field has tables of its own, as in the usual PyTorch ports: 39 independent branches.

Inputs: categories int64 [batch, 26], each below the vocabulary; numbers float32 [batch, 13].
Output: logit [batch, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.weights import RELU_GAIN, with_gain

CATEGORIES = 26
NUMBERS = 13

# So small that the sum over all pairs of fields is no larger than the perceptron's part.
_FIELD_GAIN = 0.1


class DeepFM(nn.Module):
    """Factorisation machine and perceptron over the same embeddings."""

    def __init__(self, vocabulary: int = 10_000, size: int = 10, width: int = 400) -> None:
        super().__init__()
        fields = CATEGORIES + NUMBERS

        def table(columns: int) -> nn.Embedding:
            return with_gain(nn.Embedding(vocabulary, columns), _FIELD_GAIN)

        def line(columns: int) -> nn.Linear:
            return with_gain(nn.Linear(1, columns, bias=False), _FIELD_GAIN)

        self.category_weight = nn.ModuleList(table(1) for _ in range(CATEGORIES))
        self.category = nn.ModuleList(table(size) for _ in range(CATEGORIES))
        self.number_weight = nn.ModuleList(line(1) for _ in range(NUMBERS))
        self.number = nn.ModuleList(line(size) for _ in range(NUMBERS))
        self.deep = nn.Sequential(
            with_gain(nn.Linear(fields * size, width), 1 / _FIELD_GAIN),
            nn.ReLU(),
            with_gain(nn.Linear(width, width), RELU_GAIN),
            nn.ReLU(),
            with_gain(nn.Linear(width, width), RELU_GAIN),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        weights = [table(categories[:, i]) for i, table in enumerate(self.category_weight)]
        weights += [line(numbers[:, i : i + 1]) for i, line in enumerate(self.number_weight)]
        vectors = [table(categories[:, i]) for i, table in enumerate(self.category)]
        vectors += [line(numbers[:, i : i + 1]) for i, line in enumerate(self.number)]
        first = torch.cat(weights, dim=1).sum(dim=1, keepdim=True)
        stacked = torch.stack(vectors, dim=1)  # [batch, fields, size]
        total = stacked.sum(dim=1)
        squares = (stacked * stacked).sum(dim=1)
        second = 0.5 * (total * total - squares).sum(dim=1, keepdim=True)
        deep: Tensor = self.deep(torch.cat(vectors, dim=1))
        return first + second + deep
