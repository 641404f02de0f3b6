"""Networks of one sequence, of one vector, or of one set of points: words, sound, signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.zoo.entry import Draw, Entry, floats, ids
from benchmarks.zoo.styles.layers import (
    Attention,
    Concatenated,
    First,
    Mapped,
    Residual,
    conv,
    perceptron,
    pooled,
    separable,
    transformer,
)

_SWAPPED = Mapped(lambda x: x.transpose(1, 2))
_LAST = Mapped(lambda x: x[:, -1])


def _encoder() -> nn.Module:
    """Return torch's own layers of attention and feed-forward, normed after each."""
    layers = (nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4))
    return nn.Sequential(nn.Embedding(1000, 256), *layers)


def _tagger(kind: type[nn.LSTM | nn.GRU]) -> nn.Module:
    """Return a label of every word, by two layers that read in both directions."""
    layer = First(kind(128, 96, num_layers=2, batch_first=True, bidirectional=True))
    return nn.Sequential(nn.Embedding(5000, 128), layer, nn.Linear(192, 20))


def _forecast(kind: type[nn.LSTM | nn.GRU]) -> nn.Module:
    return nn.Sequential(First(kind(64, 128, batch_first=True)), _LAST, nn.Linear(128, 16))


class _Parts(nn.Module):
    """Softmax over the last axis, as large as its input: parts of its width, not of one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1) * x.shape[-1]


def _linear(width: int, *between: nn.Module) -> nn.Module:
    layers = (nn.Sequential(nn.Linear(width, width), *between) for _ in range(4))
    return nn.Sequential(*layers)


class Experts(nn.Module):
    """A layer of feed-forward networks of which a gate takes two for each token."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        least = torch.topk(scores, 2, -1).values[..., -1:]
        weights = scores.masked_fill(scores < least, float("-inf")).softmax(-1)
        answers = torch.stack([expert(x) for expert in self.experts], -1)
        mixed: Tensor = (answers * weights[..., None, :]).sum(-1)
        return mixed


def _experts() -> nn.Module:
    layers = (layer for _ in range(2) for layer in (
        Residual(nn.LayerNorm(192), Attention(192, 4)),
        Residual(nn.LayerNorm(192), Experts(192, 6)),
    ))  # fmt: skip
    return nn.Sequential(nn.Embedding(1000, 192), *layers, nn.Linear(192, 1000))


def _text_cnn() -> nn.Module:
    """Return a class of a text, by convolutions over 3, 4 and 5 words."""
    branches = (
        nn.Sequential(nn.Conv1d(128, 128, size), nn.ReLU(), nn.AdaptiveMaxPool1d(1))
        for size in (3, 4, 5)
    )
    body = nn.Sequential(nn.Embedding(5000, 128), _SWAPPED, Concatenated(*branches))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(384, 10))


class CausalConv(nn.Module):
    """A dilated convolution that reads nothing that comes later."""

    def __init__(self, channels: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.before = 2 * dilation
        self.conv = nn.Conv1d(channels, outputs, 3, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(nn.functional.pad(x, (self.before, 0)))
        return result


def _tcn() -> nn.Module:
    layers = (
        Residual(CausalConv(64, 64, 2**n), nn.ReLU(), CausalConv(64, 64, 2**n), nn.ReLU())
        for n in range(5)
    )
    return nn.Sequential(nn.Conv1d(8, 64, 1), *layers, nn.Conv1d(64, 4, 1))


class Wavenet(nn.Module):
    """Gated dilated convolutions; the output is the sum of what each layer sets aside."""

    def __init__(self, channels: int = 64, layers: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.gates = nn.ModuleList(
            CausalConv(channels, 2 * channels, 2 ** (n % 6)) for n in range(layers)
        )
        self.onward = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers))
        self.aside = nn.ModuleList(nn.Conv1d(channels, 128, 1) for _ in range(layers))
        self.out = nn.Sequential(
            nn.ReLU(), nn.Conv1d(128, 128, 1), nn.ReLU(), nn.Conv1d(128, 64, 1)
        )

    def forward(self, wave: Tensor) -> Tensor:
        x, total = self.first(wave), torch.zeros(1)
        for gate, onward, aside in zip(self.gates, self.onward, self.aside, strict=True):
            signal, open_by = gate(x).chunk(2, 1)
            y = torch.tanh(signal) * torch.sigmoid(open_by)
            total = total + aside(y)
            x = x + onward(y)
        result: Tensor = self.out(total)
        return result


def _keywords() -> nn.Module:
    """Return a word of a second of sound, as DS-CNN."""
    layers = (separable(64, 64) for _ in range(4))
    return pooled(nn.Sequential(conv(1, 64, 5, 2), *layers), 64, 12)


def _conformer() -> nn.Module:
    """Return letters of speech: fewer frames by convolutions, then attention and convolutions."""
    width = 144

    def block() -> nn.Sequential:
        feed = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU())
        return nn.Sequential(
            Residual(*feed, nn.Linear(4 * width, width)),
            Residual(nn.LayerNorm(width), Attention(width, 4)),
            Residual(
                nn.LayerNorm(width), _SWAPPED, nn.Conv1d(width, 2 * width, 1), nn.GLU(1),
                nn.Conv1d(width, width, 15, padding=7, groups=width), nn.BatchNorm1d(width),
                nn.SiLU(), nn.Conv1d(width, width, 1), _SWAPPED,
            ),
            nn.LayerNorm(width),
        )  # fmt: skip

    fewer = nn.Sequential(conv(1, 32, 3, 2), conv(32, 32, 3, 2))
    frames = Mapped(lambda x: x.transpose(1, 2).flatten(2))
    blocks = (block() for _ in range(3))
    return nn.Sequential(fewer, frames, nn.Linear(32 * 20, width), *blocks, nn.Linear(width, 60))


def _mixer() -> nn.Module:
    """Return an MLP-Mixer: along the patches, then along the channels."""

    def feed(width: int) -> tuple[nn.Module, ...]:
        return nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    layers = (layer for _ in range(4) for layer in (
        Residual(nn.LayerNorm(192), _SWAPPED, *feed(64), _SWAPPED),
        Residual(nn.LayerNorm(192), *feed(192)),
    ))  # fmt: skip
    mean = Mapped(lambda x: x.mean(1))
    patches = nn.Sequential(nn.Conv2d(3, 192, 16, 16), nn.Flatten(2), _SWAPPED)
    return nn.Sequential(patches, *layers, nn.LayerNorm(192), mean, nn.Linear(192, 100))


class PointNet(nn.Module):
    """A class of a cloud of points: the same layers for each, the greatest of all, and on."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = self._shared(3, 64, 128)
        self.matrix = perceptron(128, 64, 9)
        self.features = self._shared(3, 64, 128, 512)
        self.classes = perceptron(512, 256, 40)

    @staticmethod
    def _shared(*widths: int) -> nn.Sequential:
        return nn.Sequential(*(layer for a, b in pairwise(widths) for layer in (
            nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())))  # fmt: skip

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.matrix(self.turn(points).amax(2)).reshape(-1, 3, 3) + torch.eye(3)
        classes: Tensor = self.classes(self.features(matrix @ points).amax(2))
        return classes


class Vocoder(nn.Module):
    """A wave from a spectrum: transposed convolutions and dilated ones, as HiFi-GAN."""

    def __init__(self) -> None:
        super().__init__()
        pairs = ((128, 64, 4), (64, 32, 4), (32, 16, 2))
        self.first = nn.Conv1d(80, 128, 7, padding=3)
        self.larger = nn.ModuleList(
            nn.ConvTranspose1d(a, b, 2 * by, by, by // 2) for a, b, by in pairs
        )
        self.smooth = nn.ModuleList(
            nn.Sequential(*(
                Residual(nn.LeakyReLU(0.1), nn.Conv1d(b, b, 3, padding=step, dilation=step))
                for step in (1, 3, 5)
            )) for _, b, _ in pairs
        )  # fmt: skip
        self.last = nn.Conv1d(16, 1, 7, padding=3)

    def forward(self, spectrum: Tensor) -> Tensor:
        x = self.first(spectrum)
        for larger, smooth in zip(self.larger, self.smooth, strict=True):
            x = smooth(larger(nn.functional.leaky_relu(x, 0.1)))
        return torch.tanh(self.last(x))


def _time_series() -> nn.Module:
    """Return a forecast by attention over patches of a signal."""
    patches = nn.Sequential(nn.Conv1d(7, 160, 16, 8), _SWAPPED)
    return nn.Sequential(patches, transformer(160, 4, 3), nn.Flatten(), nn.Linear(31 * 160, 24))


def _of(family: str, build: Callable[[], nn.Module], draw: Draw) -> Entry:
    return Entry(family, build, (draw,))


_TEXT, _SOUND, _SERIES = "words", "sound", "signals and vectors"

SEQUENCES: Mapping[str, Entry] = {
    "encoder": _of(_TEXT, _encoder, ids(64)),
    "lstm_tagger": _of(_TEXT, lambda: _tagger(nn.LSTM), ids(48, vocabulary=5000)),
    "gru_tagger": _of(_TEXT, lambda: _tagger(nn.GRU), ids(48, vocabulary=5000)),
    "text_cnn": _of(_TEXT, _text_cnn, ids(128, vocabulary=5000)),
    "experts": _of("mixtures of experts", _experts, ids(64)),
    "keywords": _of(_SOUND, _keywords, floats(1, 98, 40)),
    "conformer_like": _of(_SOUND, _conformer, floats(1, 200, 80)),
    "wavenet_like": _of(_SOUND, Wavenet, floats(1, 1024)),
    "vocoder": _of(_SOUND, Vocoder, floats(80, 48)),
    "tcn": _of(_SERIES, _tcn, floats(8, 512)),
    "lstm": _of(_SERIES, lambda: _forecast(nn.LSTM), floats(32, 64)),
    "gru": _of(_SERIES, lambda: _forecast(nn.GRU), floats(32, 64)),
    "series": _of(_SERIES, _time_series, floats(7, 256)),
    "mixer": _of(_SERIES, _mixer, floats(3, 128, 128)),
    "pointnet": _of(_SERIES, PointNet, floats(3, 512)),
    "layer_norm": _of(_SERIES, lambda: _linear(256, nn.LayerNorm(256), nn.GELU()), floats(64, 256)),
    "softmax": _of(_SERIES, lambda: _linear(256, _Parts()), floats(64, 256)),
    "perceptron": _of(_SERIES, lambda: _linear(1024, nn.ReLU()), floats(1024)),
}
