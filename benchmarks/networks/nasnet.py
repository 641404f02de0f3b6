"""NASNet-A, mobile (4 @ 1056) and large (6 @ 4032) (Zoph et al., 2018, figure 4).

A cell reads the outputs of the two cells before it, each adjusted to the cell's width first:

    previous ──adjust──> p ──┐
                             ├──> five sums of two branches ──> concat ──>
    current ───adjust──> c ──┘

    stem conv ──> reduction x 2 ──> N normal ──> reduction ──> N normal ──> reduction ──> N normal

A normal cell's width w gives 6w channels (p is concatenated too), a reduction cell's 4w.
Strided layers are padded alike on all sides, as in the PyTorch ports, not TensorFlow's way.
Output: logits [batch, 1000].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.layers import Classifier
from benchmarks.networks.separable import ReluSeparable
from benchmarks.networks.weights import with_gain

# Each sum has two terms and each cell several sums; these keep eighteen cells from piling up.
_BRANCH_GAIN = 0.6
_ADJUST_GAIN = 1.1


class ReluConvNorm(nn.Module):
    """Adjust the channels: ReLU, 1x1 convolution, batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = with_gain(nn.Conv2d(inputs, outputs, 1, bias=False), _ADJUST_GAIN)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs, h, w] to [batch, outputs, h, w]."""
        normed: Tensor = self.norm(self.conv(torch.relu(x)))
        return normed


class FactorisedReduction(nn.Module):
    """Halve height and width and adjust the channels, reading even and odd pixels by two paths.

    Two 1x1 convolutions of stride 2, the second on the input moved by one pixel, concatenated.
    Padded by one, the second reads pixels -1, 1, 3, ...; the first of those is dropped.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = with_gain(
            nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False), _ADJUST_GAIN
        )
        self.odd = with_gain(
            nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, padding=1, bias=False),
            _ADJUST_GAIN,
        )
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs, h, w] to [batch, outputs, ceil(h / 2), ceil(w / 2)]."""
        x = torch.relu(x)
        normed: Tensor = self.norm(torch.cat([self.even(x), self.odd(x)[:, :, 1:, 1:]], dim=1))
        return normed


def _separable(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """The separable convolution of the paper: applied twice, the stride in the first."""
    return nn.Sequential(
        ReluSeparable(inputs, outputs, kernel, stride=stride),
        ReluSeparable(outputs, outputs, kernel, gain=_BRANCH_GAIN),
    )


def _average(stride: int) -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride=stride, padding=1, count_include_pad=False)


class NormalCell(nn.Module):
    """Keeps height and width; ``width`` channels per sum, 6 times as many out."""

    def __init__(self, previous: nn.Module, current: nn.Module, width: int) -> None:
        super().__init__()
        self.previous = previous
        self.current = current
        self.current5 = _separable(width, width, 5)
        self.previous3 = _separable(width, width, 3)
        self.previous5 = _separable(width, width, 5)
        self.previous3b = _separable(width, width, 3)
        self.current_average = _average(1)
        self.previous_average = _average(1)
        self.previous_average_b = _average(1)
        self.current3 = _separable(width, width, 3)

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        p, c = self.previous(previous), self.current(current)
        return torch.cat(
            [
                p,
                self.current5(c) + self.previous3(p),
                self.previous5(p) + self.previous3b(p),
                self.current_average(c) + p,
                self.previous_average(p) + self.previous_average_b(p),
                self.current3(c) + c,
            ],
            dim=1,
        )


class ReductionCell(nn.Module):
    """Halves height and width; ``width`` channels per sum, 4 times as many out.

    ``inputs`` is the number of channels of the adjusted previous output, if not ``width``.
    """

    def __init__(
        self, previous: nn.Module, current: nn.Module, width: int, *, inputs: int | None = None
    ) -> None:
        super().__init__()
        inputs = width if inputs is None else inputs
        self.previous = previous
        self.current = current
        self.current5 = _separable(width, width, 5, stride=2)
        self.previous7 = _separable(inputs, width, 7, stride=2)
        self.current_max = nn.MaxPool2d(3, stride=2, padding=1)
        self.previous7b = _separable(inputs, width, 7, stride=2)
        self.current_average = _average(2)
        self.previous5 = _separable(inputs, width, 5, stride=2)
        self.first_average = _average(1)
        self.first3 = _separable(width, width, 3)
        self.current_max_b = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        p, c = self.previous(previous), self.current(current)
        first = self.current5(c) + self.previous7(p)
        second = self.current_max(c) + self.previous7b(p)
        third = self.current_average(c) + self.previous5(p)
        fourth = self.first_average(first) + second
        fifth = self.first3(first) + self.current_max_b(c)
        return torch.cat([second, third, fourth, fifth], dim=1)


class NasNet(nn.Module):
    """NASNet-A: three stages of ``repeats`` normal cells, ``penultimate`` channels at the end.

    The first cell after a reduction reads, past it, the cell before it; with ``skip_reduction``
    (large) the one before that.

    For images [batch, 3, 331, 331] (large) or [batch, 3, 224, 224] (mobile).
    """

    def __init__(
        self,
        repeats: int,
        penultimate: int,
        stem_channels: int,
        *,
        skip_reduction: bool,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.skip_reduction = skip_reduction
        width = penultimate // 24  # of the first stage: doubled twice, six sums
        quarter, half = width // 4, width // 2
        self.stem_conv = nn.Conv2d(3, stem_channels, 3, stride=2, bias=False)
        self.stem_norm = nn.BatchNorm2d(stem_channels, eps=0.001)
        self.stem0 = ReductionCell(
            nn.Identity(), ReluConvNorm(stem_channels, quarter), quarter, inputs=stem_channels
        )
        self.stem1 = ReductionCell(
            FactorisedReduction(stem_channels, half), ReluConvNorm(4 * quarter, half), half
        )
        cells: list[nn.Module] = []
        previous, current = 4 * quarter, 4 * half
        for stage in range(3):
            w = width << stage
            if stage > 0:
                cells.append(ReductionCell(ReluConvNorm(previous, w), ReluConvNorm(current, w), w))
                current = 4 * w
            for index in range(repeats):
                halve = FactorisedReduction if index == 0 else ReluConvNorm
                cells.append(NormalCell(halve(previous, w), ReluConvNorm(current, w), w))
                previous, current = current, 6 * w
        self.cells = nn.ModuleList(cells)
        self.classifier = Classifier(penultimate, classes)

    def forward(self, image: Tensor) -> Tensor:
        stem = self.stem_norm(self.stem_conv(image))
        previous = self.stem0(stem, stem)
        current = self.stem1(stem, previous)
        for cell in self.cells:
            following = cell(previous, current)
            if not isinstance(cell, ReductionCell) or not self.skip_reduction:
                previous = current
            current = following
        logits: Tensor = self.classifier(torch.relu(current))
        return logits


def nasnet_mobile() -> NasNet:
    return NasNet(4, 1056, 32, skip_reduction=False)


def nasnet_large() -> NasNet:
    return NasNet(6, 4032, 96, skip_reduction=True)
