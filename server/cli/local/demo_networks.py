"""Networks of ``braid demo`` as ONNX files: plain torch, seeded weights, no downloads.

``python -P -m braid.server.cli.local.demo_networks FOLDER NAME...`` writes ``FOLDER/NAME.onnx``:
a process of its own, as this loads torch.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """Squeeze to few channels, expand by 1x1 and 3x3 side by side; ``expand`` is of each."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, channels, h, w] to [batch, 2 * expand, h, w]."""
        squeezed = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.expand1x1(squeezed), self.expand3x3(squeezed)], dim=1))


def _fires(channels: int, *plan: tuple[int, int] | None) -> nn.Sequential:
    """Convolution and fire modules; ``plan``: squeeze and expand of each, None for a pool."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for sizes in plan:
        layers.append(nn.MaxPool2d(3, 2) if sizes is None else Fire(channels, *sizes))
        channels = channels if sizes is None else 2 * sizes[1]
    return nn.Sequential(*layers)


def _pooled() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 (Iandola et al., 2016)."""
    plan = (16, 64), (16, 64), None, (32, 128), (32, 128), None
    fires = _fires(64, *plan, (48, 192), (48, 192), (64, 256), (64, 256))
    return nn.Sequential(fires, nn.Conv2d(512, 1000, 1), nn.ReLU(), *_pooled())


class ClassifierAndDetector(nn.Module):
    """Two small networks over one image; neither reads from the other, so both can run at once.

    Their operators gain little from a second core, and both together keep two cores busy.
    """

    def __init__(self) -> None:
        super().__init__()
        plan = (16, 32), (16, 32), None, (32, 64), (32, 64), None, (48, 96), (48, 96), (64, 128)
        self.classifier = nn.Sequential(_fires(32, *plan), nn.Conv2d(256, 100, 1), *_pooled())
        self.detector = nn.Sequential(_fires(32, *plan), nn.Conv2d(256, 5, 1), nn.Sigmoid())

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [batch, 100] and score, centre and size by cell [batch, 5, 5, 5]."""
        return self.classifier(image), self.detector(image)


@dataclass(frozen=True, slots=True)
class Network:
    """A network of one input, ``image`` [batch, 3, side, side]."""

    construct: Callable[[], nn.Module]
    side: int
    outputs: tuple[str, ...]

    def build(self) -> nn.Module:
        """Return the network with weights that keep the size of activations (He et al., 2015)."""
        torch.manual_seed(0)
        module = self.construct()
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        return module.eval().requires_grad_(requires_grad=False)

    def image(self, batch: int) -> Tensor:
        return torch.rand(batch, 3, self.side, self.side, generator=torch.Generator())


NETWORKS: Mapping[str, Network] = {
    "squeezenet": Network(squeezenet, 224, ("logits",)),
    "classifier_and_detector": Network(ClassifierAndDetector, 96, ("logits", "boxes")),
}


def write_onnx(network: Network, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter, which needs no package, calls itself old
        torch.onnx.export(
            network.build(),
            (network.image(2),),  # of one row, the batch would be no open dimension
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=list(network.outputs),
            dynamic_axes={name: {0: "batch"} for name in ("image", *network.outputs)},
        )


if __name__ == "__main__":
    for name in sys.argv[2:]:
        write_onnx(NETWORKS[name], Path(sys.argv[1], f"{name}.onnx"))
