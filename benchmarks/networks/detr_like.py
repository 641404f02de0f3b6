"""A network in the manner of DETR: a backbone of convolutions, then a transformer's encoder.

Cut by kind: own convolutions are fast where a runtime's attention is, and the other way round.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.weights import with_gain

WIDTH = 256


class Block(nn.Module):
    """Two convolutions with a residual sum, as in ResNet-18."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.second_norm = with_gain(nn.BatchNorm2d(outer), 0.25)  # sums do not pile up
        same = stride == 1 and inner == outer
        self.short = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.short(x))


class Layer(nn.Module):
    """A layer of the encoder: attention of 8 heads, then two linear layers, norms behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            part(x).reshape(n, length, 8, WIDTH // 8).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / (WIDTH // 8) ** 0.5, -1)
        y = (weights @ v).transpose(1, 2).reshape(n, length, WIDTH)
        x = self.first_norm(x + self.out(y))
        result: Tensor = self.second_norm(x + self.narrow(torch.relu(self.wide(x))))
        return result


class DetrLike(nn.Module):
    """[n, 3, 192, 192] -> 4 stages of blocks -> 144 tokens -> 4 layers -> [n, 144, 92]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, 2, 3)
        widths = [32, 32, 64, 128, 128]
        stages = zip(widths, widths[1:], (2, 1, 2, 2), strict=False)
        blocks = [Block(a, b, stride) for a, b, stride in stages]
        more = [Block(b, b, 1) for b in widths[1:]]
        self.backbone = nn.Sequential(*(x for pair in zip(blocks, more, strict=True) for x in pair))
        self.project = nn.Conv2d(128, WIDTH, 1)
        self.place = nn.Embedding(144, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(4)))
        self.classes = nn.Linear(WIDTH, 92)

    def forward(self, x: Tensor) -> Tensor:
        features = self.project(self.backbone(torch.relu(self.stem(x))))
        tokens = features.flatten(2).transpose(1, 2) + self.place.weight
        y: Tensor = self.classes(self.layers(tokens))
        return y
