"""Networks of ``braid demo`` as ONNX files: seeded weights, no downloads.

``python -P -m braid.server.cli.local.demo_networks FOLDER NAME...`` writes ``FOLDER/NAME.onnx``:
a process of its own, as this loads onnx.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Plan = Sequence[tuple[int, int] | None]
"""Fire modules: squeezed channels, and those of each of two expansions; None is a pool."""


class Writer:
    """A graph under construction; each method returns the name of the tensor that it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        made = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [made], made, **attributes))
        return made

    def conv(self, x: str, inputs: int, outputs: int, side: int = 1, **attributes: Any) -> str:
        """Add a convolution whose weights keep the size of activations (He et al., 2015)."""
        limit = (6 / (inputs * side * side)) ** 0.5
        shape = (outputs, inputs, side, side)
        names = []
        for values in (
            self._random.uniform(-limit, limit, shape),
            self._random.uniform(-0.1, 0.1, outputs),
        ):
            names.append(f"weight_{len(self.weights)}")
            self.weights.append(numpy_helper.from_array(values.astype(np.float32), names[-1]))
        return self.add("Conv", x, *names, **attributes)

    def relu(self, x: str) -> str:
        return self.add("Relu", x)

    def pool(self, x: str) -> str:
        return self.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])

    def fires(self, x: str, channels: int, plan: Plan) -> str:
        """Add a convolution over an image, and the modules of ``plan``."""
        x = self.pool(self.relu(self.conv(x, 3, channels, 3, strides=[2, 2])))
        for module in plan:
            if module is None:
                x = self.pool(x)
                continue
            squeeze, expand = module
            x = self.relu(self.conv(x, channels, squeeze))
            small = self.relu(self.conv(x, squeeze, expand))
            large = self.relu(self.conv(x, squeeze, expand, 3, pads=[1, 1, 1, 1]))
            x, channels = self.add("Concat", small, large, axis=1), 2 * expand
        return x

    def logits(self, x: str) -> None:
        self.add("Flatten", self.add("GlobalAveragePool", x), name="logits")


def _squeezenet(to: Writer) -> None:
    """Write SqueezeNet 1.1 (Iandola et al., 2016)."""
    plan = ((16, 64), (16, 64), None, (32, 128), (32, 128), None)
    x = to.fires("image", 64, (*plan, (48, 192), (48, 192), (64, 256), (64, 256)))
    to.logits(to.relu(to.conv(x, 512, 1000)))


def _classifier_and_detector(to: Writer) -> None:
    """Write two small networks over one image; neither reads from the other.

    Their operators gain little from a second core, and both together keep two cores busy.
    """
    plan = ((16, 32), (16, 32), None, (32, 64), (32, 64), None, (48, 96), (48, 96), (64, 128))
    to.logits(to.conv(to.fires("image", 32, plan), 256, 100))
    to.add("Sigmoid", to.conv(to.fires("image", 32, plan), 256, 5), name="boxes")


@dataclass(frozen=True, slots=True)
class Network:
    """A network of one input, ``image`` [batch, 3, side, side]."""

    side: int
    outputs: Mapping[str, Sequence[int]]  # extents after the batch
    write: Callable[[Writer], None]


NETWORKS: Mapping[str, Network] = {
    "squeezenet": Network(224, {"logits": [1000]}, _squeezenet),
    "classifier_and_detector": Network(
        # A box is score, centre and size of what is in a cell.
        *(96, {"logits": [100], "boxes": [5, 5, 5]}, _classifier_and_detector)
    ),
}


def write_onnx(network: Network, path: Path) -> None:
    writer = Writer()
    network.write(writer)
    of = {"image": [3, network.side, network.side], **network.outputs}
    image, *outputs = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *extents])
        for name, extents in of.items()
    )
    graph = helper.make_graph(writer.nodes, path.stem, [image], outputs, writer.weights)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        write_onnx(NETWORKS[name], Path(sys.argv[1], f"{name}.onnx"))
