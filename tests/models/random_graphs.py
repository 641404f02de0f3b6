"""Random networks of images and sequences, seeded: what cuts and passes are tried on."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.models.graphs import as_model, graph, tensors

WIDTH, SIZE = 8, 6


class RandomGraph:
    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self._count = 0

    def op(self, kind: str, *reads: str, outputs: int = 1, **attributes: Any) -> str:
        self._count += 1
        names = [f"t{self._count}.{at}" if at else f"t{self._count}" for at in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(reads), names, **attributes))
        return names[0]

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        values = self._random.normal(0, scale / np.sqrt(np.prod(shape[1:]) or 1), shape)
        self.weights[name] = values.astype(np.float32)
        return name

    def integers(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values, np.int64)
        return name

    def choice(self, *kinds: Any) -> Any:
        return kinds[self._random.integers(len(kinds))]

    def image_step(self, x: str) -> str:
        """A step from [n, WIDTH, SIZE, SIZE] to the same."""
        kind = self.choice("conv", "norm", "residual", "fire", "gate", "pool", "same", "named")
        if kind == "conv":
            k = self.choice(1, 3)
            w, b = self.weight(WIDTH, WIDTH, k, k), self.weight(WIDTH)
            y = self.op("Conv", x, w, b, pads=[k // 2] * 4)
            return self.op(self.choice("Relu", "Sigmoid", "Tanh"), y)
        if kind == "norm":
            y = self.op("Conv", x, self.weight(WIDTH, WIDTH, 1, 1))
            self.weights[variance := f"w{len(self.weights)}"] = np.ones(WIDTH, np.float32)
            return self.op("BatchNormalization", y, *[self.weight(WIDTH) for _ in "abc"], variance)
        if kind == "residual":
            y = self.op("Conv", x, self.weight(WIDTH, WIDTH, 3, 3), pads=[1] * 4)
            return self.op("Relu", self.op("Add", *self.choice((x, y), (y, x))))
        if kind == "fire":
            halves = [
                self.op("Conv", x, self.weight(WIDTH // 2, WIDTH, k, k), pads=[k // 2] * 4)
                for k in (1, 3)
            ]
            return self.op("Concat", *halves, axis=1)
        if kind == "gate":
            return self.op("Mul", x, self.op("Sigmoid", self.op("GlobalAveragePool", x)))
        if kind == "pool":
            return self.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        if kind == "same":
            return self.op(self.choice("Identity", "Dropout"), x)
        return self.op("Mul", x, self.op("Constant", value_float=float(self._random.normal())))

    def flat(self, x: str) -> str:
        """[n, WIDTH, SIZE, SIZE] as [n, SIZE * SIZE, WIDTH], as exporters write it."""
        shape = self.op("Shape", x)
        extents = [self.op("Gather", shape, self.integers(at)) for at in (0, 1)]
        wanted = self.op("Concat", *extents, self.integers(-1), axis=0)
        return self.op("Transpose", self.op("Reshape", x, wanted), perm=[0, 2, 1])

    def sequence_step(self, x: str, mask: str) -> str:
        """A step from [n, SIZE * SIZE, WIDTH] to the same."""
        kind = self.choice("linear", "attention", "norm", "gelu", "mask", "branch")
        if kind == "linear":
            y = self.op("MatMul", x, self.weight(WIDTH, WIDTH))
            return self.op("Add", *self.choice((y, b := self.weight(WIDTH)), (b, y)))
        if kind == "attention":
            q, k, v = (self.op("MatMul", x, self.weight(WIDTH, WIDTH)) for _ in "qkv")
            scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 1]))
            y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
            return self.op("Add", x, y)
        if kind == "norm":
            return self.op("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH), axis=-1)
        if kind == "gelu":
            y = self.op("MatMul", x, self.weight(WIDTH, 2 * WIDTH))
            half, root = (self.op("Constant", value_float=number) for number in (0.5, 2**0.5))
            one = self.op("Constant", value_float=1.0)
            erf = self.op("Add", self.op("Erf", self.op("Div", y, root)), one)
            y = self.op("Mul", self.op("Mul", y, erf), half)
            return self.op("MatMul", y, self.weight(2 * WIDTH, WIDTH))
        if kind == "mask":
            return self.op("Mul", x, self.op("Unsqueeze", mask, self.integers(2)))
        arms = []
        for name in ("Neg", "Abs"):  # a subgraph that reads a tensor from outside
            node = helper.make_node(name, [x], [f"{name}{self._count}"])
            arms.append(graph([node], [], tensors(**{f"{name}{self._count}": None}), name=name))
        condition = f"w{len(self.weights)}"
        self.weights[condition] = np.asarray(self._random.integers(2) == 1)
        return self.op("If", condition, then_branch=arms[0], else_branch=arms[1])


def random_model(seed: int, steps: int = 6) -> onnx.ModelProto:
    """Images, perhaps with a second output; then, perhaps, a sequence under a mask."""
    drawn = RandomGraph(seed)
    x, outputs = "x", dict[str, list[Any]]()
    mask: dict[str, list[Any]] = {}
    image = ["n", WIDTH, SIZE, SIZE]
    for _ in range(drawn.choice(1, 2, steps // 2, steps)):
        x = drawn.image_step(x)
    if drawn.choice(True, False, False):
        outputs[drawn.op("Relu", x)] = image
    if drawn.choice(True, True, False):
        mask = {"mask": ["n", SIZE * SIZE]}
        x = drawn.flat(x)
        for _ in range(drawn.choice(1, 2, steps // 2, steps)):
            x = drawn.sequence_step(x, "mask")
        x = drawn.op("Mul", x, drawn.op("Unsqueeze", "mask", drawn.integers(2)))
        outputs[drawn.op("Tanh", x)] = ["n", SIZE * SIZE, WIDTH]
    else:
        outputs[drawn.op("Tanh", x)] = image
    inputs = tensors(TensorProto.FLOAT, x=image, **mask)
    return as_model(graph(drawn.nodes, inputs, tensors(**outputs), drawn.weights))
