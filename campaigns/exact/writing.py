"""Random networks as ONNX files: plain, with Q and DQ, or of quantised operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from campaigns.exact.drawing import Drawn
from campaigns.exact.precisions import Integers
from campaigns.exact.steps import Array, Step
from tests.models.graphs import graph, tensors

_ONNX = {"add": "Add", "max_pool": "MaxPool", "avg_pool": "AveragePool",
         "mean": "GlobalAveragePool", "conv": "Conv", "linear": "Gemm"}  # fmt: skip
_NUMBERS = {"LeakyRelu": {"alpha": 0.125}}


class _Writing:
    """Nodes and constants so far."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        domain = "com.microsoft" if kind.startswith(("QLinear", "QGemm")) else ""
        domain = "" if kind in ("QLinearConv", "QLinearMatMul") else domain
        message = helper.make_node(kind, inputs, [output], output, domain=domain, **attributes)
        self.nodes.append(message)
        return output

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        self.constants[name] = np.asarray(value, dtype)
        return name

    def save(self, drawn: Drawn, shown: list[Any], path: Path) -> None:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        entering = tensors(x=["batch", *drawn.shape])
        content = graph(self.nodes, entering, shown, self.constants)
        onnx.save(helper.make_model(content, opset_imports=opsets, ir_version=8), path)


def _window(step: Step) -> dict[str, Any]:
    window = step.window
    if step.kind not in ("conv", "max_pool", "avg_pool"):
        return {}
    given: dict[str, Any] = {
        "kernel_shape": window.kernel, "strides": [window.stride] * 2,
        "pads": [*window.padding, *window.padding],
    }  # fmt: skip
    if step.kind == "conv":
        return {**given, "dilations": [window.dilation] * 2, "group": window.groups}
    return given | ({"count_include_pad": int(window.counts_padding)}
                    if step.kind == "avg_pool" else {})  # fmt: skip


def _operator(to: _Writing, step: Step, operands: list[str], output: str) -> None:
    """A step in FP32, with its activation."""
    name = f"{output}:sum" if step.activation and step.kind != "function" else output
    if step.kind == "concat":
        to.node("Concat", operands, name, axis=1)
    elif step.kind == "linear":
        flat = to.node("Flatten", operands[:1], f"{output}:flat")
        to.node("Gemm", [flat, *operands[1:]], name, transB=1)
    elif step.kind != "function":
        to.node(_ONNX[step.kind], operands, name, **_window(step))
    if not step.activation:
        return
    source, limits = (operands[0] if step.kind == "function" else name), []
    if step.activation == "Clip":
        limits = [to.constant(f"{output}:{i}", 6 * i) for i in range(2)]
    to.node(step.activation, [source, *limits], output, **_NUMBERS.get(step.activation, {}))


def write_plain(drawn: Drawn, path: Path) -> None:
    """The network in FP32."""
    to = _Writing()
    for step in drawn.steps:
        operands = list(step.inputs)
        for role, content in (("w", step.weight), ("b", step.bias)):
            if content is not None:
                operands.append(to.constant(f"{step.output}:{role}", content))
        _operator(to, step, operands, step.output)
    to.save(drawn, tensors(**dict.fromkeys(drawn.shown())), path)


class _Quantised(_Writing):
    """Nodes and constants of a network on integers."""

    def __init__(self, network: Integers) -> None:
        super().__init__()
        self.network = network
        for name, grid in network.grids.items():
            self.constant(f"{name}:scale", grid.scale)
            self.constant(f"{name}:zero", grid.zero, grid.dtype)

    def grid(self, value: str) -> tuple[str, str]:
        return f"{value}:scale", f"{value}:zero"

    def weights(self, step: Step) -> tuple[tuple[str, str, str], str]:
        """Weights with their grid, and the bias, if there is one, in 32 bits."""
        name, integers = step.output, self.network.weights[step.output]
        scales = integers.scales if len(integers.scales) > 1 else integers.scales[0]
        names = (
            self.constant(f"{name}:w", integers.integers, np.int8),
            self.constant(f"{name}:ws", scales),
            self.constant(f"{name}:wz", np.zeros_like(scales), np.int8),
        )
        bias = integers.bias
        return names, "" if bias is None else self.constant(f"{name}:b", bias, np.int32)

    def wide(self, value: str, scale: str, zero: str, to: str) -> str:
        operands = [name for name in (value, scale, zero) if name]
        return self.node("DequantizeLinear", operands, to, axis=0)

    def finish(self, path: Path) -> None:
        drawn, grids = self.network.drawn, self.network.grids
        last = drawn.steps[-1].output
        self.wide(last, *self.grid(last), "y")
        shown = list(tensors(y=None))
        for name in drawn.shown():
            kind = TensorProto.INT8 if grids[name].dtype is np.int8 else TensorProto.UINT8
            shown += tensors(kind, **{name: None})
        self.save(drawn, shown, path)


def write_qdq(network: Integers, path: Path) -> None:
    """Each operator between DequantizeLinear and QuantizeLinear."""
    to = _Quantised(network)
    to.node("QuantizeLinear", ["x", *to.grid("x")], "x:integers")
    for step in network.drawn.steps:
        name = step.output
        operands = [
            to.wide(_stored(value), *to.grid(value), f"{name}:in{i}")
            for i, value in enumerate(step.inputs)
        ]
        if step.weight is not None:
            weights, bias = to.weights(step)
            operands.append(to.wide(*weights, f"{name}:wide"))
            if bias:
                data = network.grids[step.inputs[0]].scale
                scales = data * to.constants[weights[1]]
                scale = to.constant(f"{name}:bs", scales)
                operands.append(to.wide(bias, scale, "", f"{name}:bias"))
        _operator(to, step, operands, f"{name}:float")
        to.node("QuantizeLinear", [f"{name}:float", *to.grid(name)], name)
    to.finish(path)


def _stored(value: str) -> str:
    return "x:integers" if value == "x" else value


def write_operators(network: Integers, path: Path) -> None:
    """Quantised operators, as ONNX Runtime's tool writes them; ReLU is the end of the range."""
    to = _Quantised(network)
    to.node("QuantizeLinear", ["x", *to.grid("x")], "x:integers")
    for step in network.drawn.steps:
        operands = [name for v in step.inputs for name in (_stored(v), *to.grid(v))]
        result = to.grid(step.output)
        if step.kind == "concat":
            to.node("QLinearConcat", [*result, *operands], step.output, axis=1)
        elif step.kind == "max_pool":
            to.node("MaxPool", operands[:1], step.output, **_window(step))
        elif step.weight is not None:
            _weighted(to, step, operands, result)
        else:
            kind, given = {
                "add": ("QLinearAdd", {}),
                "avg_pool": ("QLinearAveragePool", _window(step)),
                "mean": ("QLinearGlobalAveragePool", {}),
                "function": (f"QLinear{step.activation}", _NUMBERS.get(step.activation, {})),
            }[step.kind]
            to.node(kind, [*operands, *result], step.output, **given)
    to.finish(path)


def _weighted(to: _Quantised, step: Step, operands: list[str], result: tuple[str, str]) -> None:
    weights, bias = to.weights(step)
    if step.kind == "conv":
        given = [*operands, *weights, *result, *([bias] if bias else [])]
        to.node("QLinearConv", given, step.output, **_window(step))
        return
    flat = to.node("Flatten", operands[:1], f"{step.output}:flat")
    to.node("QGemm", [flat, *operands[1:], *weights, bias, *result], step.output, transB=1)
