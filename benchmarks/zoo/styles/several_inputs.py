"""Networks of several inputs: recommenders, towers, pairs of images, graphs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.zoo.entry import Entry, floats, ids
from benchmarks.zoo.styles.layers import First, halving, perceptron, pooled, transformer

_FIELDS, _WIDTH = 26, 32


class Recommender(nn.Module):
    """Tables of categories and a network of numbers, their products in pairs, as DLRM."""

    pairs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(2000, _WIDTH) for _ in range(_FIELDS))
        self.numbers = perceptron(13, 256, 128, _WIDTH)
        self.click = perceptron(_WIDTH + (_FIELDS + 1) * _FIELDS // 2, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(_FIELDS + 1, _FIELDS + 1, -1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        dense = self.numbers(numbers)
        rows = [table(categories[:, field]) for field, table in enumerate(self.tables)]
        fields = torch.stack([dense, *rows], 1)
        products = fields @ fields.transpose(1, 2)
        pairs = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.click(torch.cat([dense, pairs], 1)))


class TwoTowers(nn.Module):
    """A user's history and an item, each through a tower; how well they go together."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(5000, 96)
        self.history = transformer(96, 4, 2)
        self.user, self.item = perceptron(96, 256, 64), perceptron(96 + 16, 256, 64)

    def forward(self, history: Tensor, item: Tensor, facts: Tensor) -> Tensor:
        user = self.user(self.history(self.items(history)).mean(1))
        other = self.item(torch.cat([self.items(item)[:, 0], facts], 1))
        user, other = (nn.functional.normalize(side, dim=-1) for side in (user, other))
        return (user * other).sum(-1, keepdim=True)


class ImageAndText(nn.Module):
    """A tower of convolutions and a tower of attention; the cosine of what they find."""

    def __init__(self) -> None:
        super().__init__()
        self.image = pooled(halving(3, 32, 64, 128, 192), 192, 128)
        self.words = nn.Embedding(1000, 192)
        self.text, self.narrow = transformer(192, 4, 3), nn.Linear(192, 128)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        text = self.narrow(self.text(self.words(words)).mean(1))
        pair = (nn.functional.normalize(side, dim=-1) for side in (self.image(image), text))
        return torch.stack(list(pair), 1).prod(1).sum(-1, keepdim=True)


class Siamese(nn.Module):
    """The same network on two images, and how far apart they are."""

    def __init__(self) -> None:
        super().__init__()
        self.body = pooled(halving(3, 32, 64, 128), 128, 128)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        apart = self.body(first) - self.body(second)
        return torch.sqrt((apart * apart).sum(-1, keepdim=True) + 1e-6)


class GraphNetwork(nn.Module):
    """Layers that mix nodes by a dense matrix of edges, which is normed by its rows."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 128, 128, 64)
        self.layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in pairwise(widths))
        self.classes = nn.Linear(64, 7)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        weights = edges.abs() / (edges.abs().sum(-1, keepdim=True) + 1e-6)
        for layer in self.layers:
            nodes = torch.relu(layer(torch.cat([nodes, weights @ nodes], -1)))
        classes: Tensor = self.classes(nodes)
        return classes


class Translator(nn.Module):
    """torch's own transformer, encoder and decoder, with the mask of what comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 192)
        self.model = nn.Transformer(192, 4, 2, 2, 768, batch_first=True)
        self.out = nn.Linear(192, 1000)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        later = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        x = self.model(self.words(source), self.words(target), tgt_mask=later)
        scores: Tensor = self.out(x)
        return scores


class Answers(nn.Module):
    """Attention of an image's cells to words and back: an answer to a question on an image."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.words = halving(3, 32, 64, 128, 192), nn.Embedding(1000, 192)
        self.order = First(nn.GRU(192, 192, batch_first=True))
        self.looks = nn.MultiheadAttention(192, 4, batch_first=True)
        self.answer = perceptron(384, 256, 100)

    def forward(self, image: Tensor, question: Tensor) -> Tensor:
        cells, words = (
            self.cells(image).flatten(2).transpose(1, 2),
            self.order(self.words(question)),
        )
        found = self.looks(words, cells, cells, need_weights=False)[0]
        answer: Tensor = self.answer(torch.cat([found.mean(1), words[:, -1]], -1))
        return answer


_TOWERS, _RECOMMENDERS = "towers", "recommenders"

SEVERAL_INPUTS: Mapping[str, Entry] = {
    "recommender": Entry(_RECOMMENDERS, Recommender, (ids(_FIELDS, vocabulary=2000), floats(13))),
    "two_towers": Entry(
        _RECOMMENDERS, TwoTowers, (ids(32, vocabulary=5000), ids(1, vocabulary=5000), floats(16))
    ),
    "image_and_text": Entry(_TOWERS, ImageAndText, (floats(3, 128, 128), ids(48))),
    "siamese": Entry(_TOWERS, Siamese, (floats(3, 128, 128), floats(3, 128, 128))),
    "answers": Entry(_TOWERS, Answers, (floats(3, 128, 128), ids(20))),
    "graph": Entry("graphs", GraphNetwork, (floats(128, 32), floats(128, 128))),
    "translator": Entry("words", Translator, (ids(48), ids(32))),
}
