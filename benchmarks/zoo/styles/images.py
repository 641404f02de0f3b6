"""Networks of one image: classifiers, detectors, readers of text, and images from images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.networks.registry import NETWORKS
from benchmarks.zoo.entry import Entry, floats
from benchmarks.zoo.styles.layers import (
    Concatenated,
    First,
    Mapped,
    Residual,
    conv,
    halving,
    pooled,
    separable,
)


class Detector(nn.Module):
    """Boxes and classes of two scales in one table."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = halving(3, 16, 32, 64)
        self.deep = halving(64, 96)
        self.heads = nn.ModuleList([nn.Conv2d(64, 24, 1), nn.Conv2d(96, 24, 1)])

    def forward(self, x: Tensor) -> Tensor:
        scales = [self.stem(x)]
        scales.append(self.deep(scales[0]))
        rows = [head(scale).flatten(2) for head, scale in zip(self.heads, scales, strict=True)]
        table = torch.cat(rows, 2).transpose(1, 2)
        return torch.cat([table[..., :2].sigmoid(), table[..., 2:4].exp(), table[..., 4:]], -1)


def _silu(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(*list(conv(inputs, outputs, kernel, stride))[:-1], nn.SiLU())


class Split(nn.Module):
    """Half of the channels through bottlenecks, the other half past them, as YOLO's C3."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        half = channels // 2
        bottlenecks = (Residual(_silu(half, half, 1), _silu(half, half)) for _ in range(depth))
        self.deep = nn.Sequential(_silu(channels, half, 1), *bottlenecks)
        self.short, self.out = _silu(channels, half, 1), _silu(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.out(torch.cat([self.deep(x), self.short(x)], 1))
        return joined


class Yolo(nn.Module):
    """Backbone, a pyramid from top to bottom and back, a head on each of three scales."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 192)
        self.stem = nn.Sequential(_silu(3, 16, 3, 2), _silu(16, widths[0], 3, 2))
        self.stages = nn.ModuleList(
            nn.Sequential(_silu(a, b, 3, 2), Split(b, 2)) for a, b in pairwise(widths)
        )
        self.narrow = nn.ModuleList([_silu(192, 128, 1), _silu(256, 64, 1)])
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.mixed = nn.ModuleList([Split(256, 1), Split(128, 1)])
        self.down = nn.ModuleList([_silu(128, 64, 3, 2), _silu(128, 128, 3, 2)])
        self.lower = nn.ModuleList([Split(128, 1), Split(256, 1)])
        self.heads = nn.ModuleList(nn.Conv2d(width, 3 * 25, 1) for width in (128, 128, 256))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        scales, x = [], self.stem(image)
        for stage in self.stages:
            x = stage(x)
            scales.append(x)
        fine, middle, coarse = scales[0], scales[1], self.narrow[0](scales[2])
        middle = self.narrow[1](self.mixed[0](torch.cat([self.up(coarse), middle], 1)))
        fine = self.mixed[1](torch.cat([self.up(middle), fine], 1))
        middle = self.lower[0](torch.cat([self.down[0](fine), middle], 1))
        coarse = self.lower[1](torch.cat([self.down[1](middle), coarse], 1))
        levels = zip(self.heads, (fine, middle, coarse), strict=True)
        return tuple(head(level).sigmoid() for head, level in levels)


class Ssd(nn.Module):
    """Separable convolutions, boxes and classes at four scales, decoded against anchors."""

    anchors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, 3, 2), separable(16, 32), separable(32, 64, 2))
        widths = (64, 128, 192, 192, 128)
        pairs = list(pairwise(widths))
        self.scales = nn.ModuleList(
            nn.Sequential(separable(a, b, 2), separable(b, b)) for a, b in pairs
        )
        self.boxes = nn.ModuleList(nn.Conv2d(b, 4 * 4, 3, padding=1) for _, b in pairs)
        self.classes = nn.ModuleList(nn.Conv2d(b, 4 * 21, 3, padding=1) for _, b in pairs)
        cells = 20**2 + 10**2 + 5**2 + 3**2
        self.register_buffer("anchors", torch.rand(4 * cells, 4))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x, boxes, classes = self.stem(image), [], []
        for scale, box, score in zip(self.scales, self.boxes, self.classes, strict=True):
            x = scale(x)
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            classes.append(score(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 21))
        deltas = torch.cat(boxes, 1)
        centres = self.anchors[:, :2] + deltas[..., :2] * self.anchors[:, 2:] * 0.1
        sizes = self.anchors[:, 2:] * torch.exp(deltas[..., 2:] * 0.2)
        corners = torch.cat([centres - sizes / 2, centres + sizes / 2], -1)
        return corners, torch.cat(classes, 1).softmax(-1)


class Unet(nn.Module):
    """Down and up again, with what was there at each size beside it."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.first = nn.Sequential(conv(3, widths[0]), conv(widths[0], widths[0]))
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), conv(a, b), conv(b, b)) for a, b in pairs
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs[::-1])
        self.joined = nn.ModuleList(
            nn.Sequential(conv(2 * a, a), conv(a, a)) for a, _ in pairs[::-1]
        )
        self.classes = nn.Conv2d(widths[0], 8, 1)

    def forward(self, image: Tensor) -> Tensor:
        x, beside = self.first(image), []
        for down in self.down:
            beside.append(x)
            x = down(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([up(x), beside.pop()], 1))
        scores: Tensor = self.classes(x)
        return scores


class SqueezeExcite(nn.Module):
    """Scales each channel by what the image as a whole says."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels // 4, 1), nn.SiLU(),
            nn.Conv2d(channels // 4, channels, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = x * self.gate(x)
        return scaled


def _inverted(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return EfficientNet's block."""
    wide = 4 * inputs
    deep = nn.Sequential(
        _silu(inputs, wide, 1),
        nn.Conv2d(wide, wide, 5, stride, 2, groups=wide, bias=False),
        nn.BatchNorm2d(wide),
        nn.SiLU(),
        SqueezeExcite(wide),
        nn.Conv2d(wide, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )
    return Residual(deep) if (inputs, stride) == (outputs, 1) else deep


def _efficient() -> nn.Module:
    widths = ((24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1), (80, 112, 2))
    blocks = (_inverted(*width) for width in widths)
    return pooled(nn.Sequential(_silu(3, 24, 3, 2), *blocks), 112)


class _LastNorm(nn.Module):
    """Layer norm over the channels of an image, by way of the channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normed


def _convnext() -> nn.Module:
    def block(width: int) -> nn.Module:
        return Residual(
            nn.Conv2d(width, width, 7, padding=3, groups=width), _LastNorm(width),
            nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1),
        )  # fmt: skip

    layers: list[nn.Module] = [nn.Conv2d(3, 48, 4, 4), _LastNorm(48), block(48), block(48)]
    for a, b in ((48, 96), (96, 192)):
        layers += [_LastNorm(a), nn.Conv2d(a, b, 2, 2), block(b), block(b)]
    return pooled(nn.Sequential(*layers), 192)


def _dense() -> nn.Module:
    """Return blocks in which each layer reads all layers before it."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2), nn.MaxPool2d(2)]
    width = 32
    for _ in range(3):
        for _ in range(4):
            layer = nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), conv(width, 64, 1), conv(64, 24)
            )
            layers.append(Concatenated(nn.Identity(), layer))
            width += 24
        layers += [conv(width, width // 2, 1), nn.AvgPool2d(2)]
        width //= 2
    return pooled(nn.Sequential(*layers), width)


def _shuffled(x: Tensor, groups: int = 4) -> Tensor:
    n, channels, height, width = x.shape
    grouped = x.reshape(n, groups, channels // groups, height, width)
    return grouped.transpose(1, 2).reshape(n, channels, height, width)


def _shuffle() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2), nn.MaxPool2d(2)]
    for a, b in ((32, 64), (64, 128), (128, 256)):
        layers += [separable(a, b, 2)]
        layers += [
            Residual(conv(b, b, 1, groups=4), Mapped(_shuffled), separable(b, b)) for _ in range(2)
        ]
    return pooled(nn.Sequential(*layers), 256)


def _pose() -> nn.Module:
    """Return heat maps of 17 points by transposed convolutions."""
    up = [(192, 128), (128, 64)]
    layers = [layer for a, b in up for layer in (
        nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())]  # fmt: skip
    return nn.Sequential(halving(3, 32, 64, 128), conv(128, 192), *layers, nn.Conv2d(64, 17, 1))


def _crnn() -> nn.Module:
    """Return letters of a line of text: convolutions, then an LSTM from left to right and back."""
    body = nn.Sequential(
        conv(1, 32), nn.MaxPool2d(2), conv(32, 64), nn.MaxPool2d(2),
        conv(64, 128), nn.MaxPool2d((2, 1)), conv(128, 128), nn.MaxPool2d((4, 1)),
    )  # fmt: skip
    columns = Mapped(lambda x: x.squeeze(2).transpose(1, 2))
    lstm = First(nn.LSTM(128, 96, batch_first=True, bidirectional=True))
    return nn.Sequential(body, columns, lstm, nn.Linear(192, 80), nn.LogSoftmax(-1))


class TextDetector(nn.Module):
    """Where text is, by features of all sizes at a quarter of the image's, as DB and EAST do it."""

    def __init__(self) -> None:
        super().__init__()
        widths = (24, 48, 96, 128)
        self.first = halving(3, 16, widths[0])
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 3, 2), Residual(conv(b, b))) for a, b in pairwise(widths)
        )
        self.narrow = nn.ModuleList(nn.Conv2d(width, 64, 1) for width in widths)
        self.smooth = nn.ModuleList(conv(64, 32) for _ in widths)
        self.head = nn.Sequential(
            conv(128, 32), nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 2, 2), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, image: Tensor) -> Tensor:
        scales = [self.first(image)]
        for stage in self.stages:
            scales.append(stage(scales[-1]))
        levels = [narrow(scale) for narrow, scale in zip(self.narrow, scales, strict=True)]
        for coarse in range(3, 0, -1):
            larger = nn.functional.interpolate(levels[coarse], scale_factor=2.0, mode="nearest")
            levels[coarse - 1] = levels[coarse - 1] + larger
        joined = [
            nn.functional.interpolate(smooth(level), scale_factor=float(2**n), mode="bilinear")
            for n, (smooth, level) in enumerate(zip(self.smooth, levels, strict=True))
        ]
        where: Tensor = self.head(torch.cat(joined, 1))
        return where


def _super_resolution() -> nn.Module:
    blocks = (
        Residual(nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1))
        for _ in range(6)
    )
    larger = (nn.Conv2d(48, 3 * 16, 3, padding=1), nn.PixelShuffle(4))
    return nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), *blocks, *larger)


def _styled() -> nn.Module:
    """Return an image in another style: instance norms, reflected borders."""

    def layer(a: int, b: int, kernel: int, stride: int = 1) -> nn.Sequential:
        pad = nn.ReflectionPad2d(kernel // 2)
        return nn.Sequential(
            pad, nn.Conv2d(a, b, kernel, stride), nn.InstanceNorm2d(b, affine=True), nn.ReLU()
        )

    larger = nn.Upsample(scale_factor=2, mode="nearest")
    middle = (Residual(layer(64, 64, 3), layer(64, 64, 3)) for _ in range(3))
    return nn.Sequential(
        layer(3, 16, 9), layer(16, 32, 3, 2), layer(32, 64, 3, 2), *middle,
        larger, layer(64, 32, 3), larger, layer(32, 16, 3), nn.Conv2d(16, 3, 9, padding=4),
    )  # fmt: skip


class Vae(nn.Module):
    """An image through a narrow code and back; returns image, mean and spread of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(halving(3, 32, 64, 128), nn.Flatten())
        self.code = nn.Linear(128 * 8 * 8, 2 * 64)
        self.wide = nn.Linear(64, 128 * 8 * 8)
        pairs = ((128, 64), (64, 32), (32, 16))
        self.decoder = nn.Sequential(*(layer for a, b in pairs for layer in (
            nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.1),
        )), nn.Conv2d(16, 3, 3, padding=1), nn.Tanh())  # fmt: skip

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.code(self.encoder(image)).chunk(2, 1)
        code = mean + 0.1 * torch.exp(0.5 * spread)
        return self.decoder(self.wide(code).reshape(-1, 128, 8, 8)), mean, spread


def _upsampler() -> nn.Module:
    return nn.Sequential(
        halving(3, 16, 32),
        nn.ConvTranspose2d(32, 16, 2, 2),
        nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(16, 3, 3, padding=1),
    )


def _diffusion() -> nn.Module:
    """Return blocks of a U-Net of diffusion: group norms and SiLU."""
    block = (nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1))
    return nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1), *(Residual(nn.Sequential(*block)) for _ in range(3))
    )


class Twins(nn.Module):
    """Two networks of one image in one file."""

    def __init__(self, network: str) -> None:
        super().__init__()
        self.first, self.second = NETWORKS[network].build(0), NETWORKS[network].build(1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(image), self.second(image)


class FaceTasks(nn.Module):
    """One backbone, then a tower for each of four questions."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = halving(3, 24, 48, 96)
        outputs = (2, 10, 7, 128)
        self.towers = nn.ModuleList(
            pooled(nn.Sequential(separable(96, 128, 2), separable(128, 128)), 128, count)
            for count in outputs
        )

    def forward(self, face: Tensor) -> tuple[Tensor, ...]:
        x = self.backbone(face)
        return tuple(tower(x) for tower in self.towers)


def _of(family: str, build: Callable[[], nn.Module], *shape: int) -> Entry:
    return Entry(family, build, (floats(*shape),))


def _network(name: str, side: int) -> Entry:
    return _of("classifiers", NETWORKS[name].build, 3, side, side)


_CLASSIFIERS, _DETECTORS = "classifiers", "detectors"
_TEXT, _IMAGE, _SEVERAL = "text in images", "images from images", "several networks"

IMAGES: Mapping[str, Entry] = {
    "cnn": _of(_CLASSIFIERS, lambda: pooled(halving(3, 32, 64, 128), 128), 3, 160, 160),
    "squeezenet": _network("squeezenet", 224),
    "mnasnet": _network("mnasnet", 224),
    "resnet50": _network("resnet50", 224),
    "efficient": _of(_CLASSIFIERS, _efficient, 3, 160, 160),
    "convnext_like": _of(_CLASSIFIERS, _convnext, 3, 128, 128),
    "densenet_like": _of(_CLASSIFIERS, _dense, 3, 160, 160),
    "shufflenet_like": _of(_CLASSIFIERS, _shuffle, 3, 160, 160),
    "detector": _of(_DETECTORS, Detector, 3, 256, 256),
    "yolo_like": _of(_DETECTORS, Yolo, 3, 192, 192),
    "ssd_like": _of(_DETECTORS, Ssd, 3, 160, 160),
    "detr_like": _of(_DETECTORS, NETWORKS["detr_like"].build, 3, 192, 192),
    "pose": _of(_DETECTORS, _pose, 3, 128, 96),
    "crnn": _of(_TEXT, _crnn, 1, 32, 160),
    "text_detector": _of(_TEXT, TextDetector, 3, 192, 192),
    "unet": _of(_IMAGE, lambda: Unet(16, 32, 64, 128), 3, 96, 96),
    "super_resolution": _of(_IMAGE, _super_resolution, 3, 48, 48),
    "styled": _of(_IMAGE, _styled, 3, 96, 96),
    "vae": _of(_IMAGE, Vae, 3, 64, 64),
    "upsampler": _of(_IMAGE, _upsampler, 3, 128, 128),
    "diffusion": _of(_IMAGE, _diffusion, 4, 32, 32),
    "two_mnasnets": _of(_SEVERAL, lambda: Twins("mnasnet"), 3, 224, 224),
    "two_squeezenets": _of(_SEVERAL, lambda: Twins("squeezenet"), 3, 224, 224),
    "face_tasks": _of(_SEVERAL, FaceTasks, 3, 112, 112),
}
