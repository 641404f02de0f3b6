"""Small networks, quantised by ONNX Runtime with seeded calibration data."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

Array = NDArray[Any]


class Network:
    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = name, shape
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        """Enter weights that keep the size of what they are multiplied with."""
        content = self._random.standard_normal(shape) * (2 / np.prod(shape[1:] or (1,))) ** 0.5
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(content.astype(np.float32), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Enter a node; returns its output."""
        output = f"{op_type.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output

    def conv(self, x: str, out: int, c: int, kernel: int = 3, group: int = 1, **more: Any) -> str:
        weights = self.weight(out, c // group, kernel, kernel), self.weight(out)
        pads = [kernel // 2] * 4
        return self.node("Conv", x, *weights, pads=pads, group=group, **more)

    def model(self, output: str) -> onnx.ModelProto:
        """The network, from ``x`` to ``output``, of any batch size."""
        dims: list[str | int] = ["batch", *self.shape]
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        return model


def residual() -> tuple[Network, str]:
    """Convolutions with shortcuts, one of them projected, as in ResNet."""
    net = Network("residual", (3, 16, 16))
    x = net.node("Relu", net.conv("x", 16, 3))
    inner = net.node("Relu", net.conv(x, 8, 16, kernel=1))
    x = net.node("Relu", net.node("Add", net.conv(inner, 16, 8), x))
    inner = net.node("Relu", net.conv(x, 8, 16, strides=[2, 2]))
    far, near = net.conv(inner, 24, 8), net.conv(x, 24, 16, kernel=1, strides=[2, 2])
    x = net.node("Relu", net.node("Add", far, near))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    return net, net.node("Gemm", x, net.weight(10, 24), net.weight(10), transB=1)


def branches() -> tuple[Network, str]:
    """Branches that are concatenated, one of them pooled, as in GoogLeNet and SqueezeNet."""
    net = Network("branches", (3, 15, 15))
    x = net.node("Relu", net.conv("x", 16, 3))
    for _ in range(2):
        squeezed = net.node("Relu", net.conv(x, 8, 16, kernel=1))
        one = net.node("Relu", net.conv(squeezed, 4, 8, kernel=1))
        three = net.node("Relu", net.conv(squeezed, 6, 8))
        pooled = net.node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        pooled = net.node("Relu", net.conv(pooled, 6, 16, kernel=1))
        x = net.node("Concat", one, three, pooled, axis=1)
    x = net.node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2])
    return net, net.node("GlobalAveragePool", net.conv(x, 12, 16, kernel=1))


def separable() -> tuple[Network, str]:
    """Depthwise convolutions and functions other than ReLU, as in MobileNet."""
    net = Network("separable", (8, 12, 12))
    x = net.node("Clip", net.conv("x", 8, 8, group=8), net.weight(), net.weight())
    x = net.node("HardSwish", net.conv(x, 16, 8, kernel=1))
    x = net.node("LeakyRelu", net.conv(x, 16, 16, group=4, dilations=[2, 2]), alpha=0.1)
    gate = net.node("Sigmoid", net.conv(net.node("GlobalAveragePool", x), 16, 16, kernel=1))
    return net, net.conv(net.node("Mul", x, gate), 4, 16, kernel=1)


def attention() -> tuple[Network, str]:
    net = Network("attention", (6, 32))
    q, k, v = (
        net.node("Add", net.node("MatMul", "x", net.weight(32, 32)), net.weight(32))
        for _ in range(3)
    )
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]))
    mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    x = net.node("Add", net.node("MatMul", mixed, net.weight(32, 32)), "x")
    x = net.node("Tanh", net.node("MatMul", x, net.weight(32, 48)))
    return net, net.node("MatMul", x, net.weight(48, 5))


NETWORKS: Mapping[str, Callable[[], tuple[Network, str]]] = {
    made.__name__: made for made in (residual, branches, separable, attention)
}


class _Drawn(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(1)
        drawn = ({"x": normal(random, (4, *shape))} for _ in range(3))
        self._left: Iterator[Mapping[str, Array]] = iter(drawn)

    def get_next(self) -> Mapping[str, Array] | None:
        return next(self._left, None)


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal numbers in FP32."""
    return random.standard_normal(shape).astype(np.float32)


def quantised(
    name: str, folder: Path, *, signed: bool, per_channel: bool, operators: bool = False
) -> Path:
    """Quantise a network; ``operators``: as quantised operators, not as Q and DQ around others."""
    net, output = NETWORKS[name]()
    plain, path = folder / "plain.onnx", folder / f"{name}.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(net.model(output)), plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(
            plain,
            path,
            _Drawn(net.shape),
            quant_format=QuantFormat.QOperator if operators else QuantFormat.QDQ,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )
    return path


def quantised_by_data(name: str, folder: Path, *, per_channel: bool = False) -> Path:
    """Quantise a network's weights; activations get their grids when it runs."""
    net, output = NETWORKS[name]()
    plain, path = folder / "plain.onnx", folder / f"{name}.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(net.model(output)), plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(plain, path, weight_type=QuantType.QInt8, per_channel=per_channel)
    return path
