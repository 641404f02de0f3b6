"""Lowering of operators on quantised integers.

Those whose operands are quantised become: dequantise, the operator, quantise.

    QLinearConv(x, ...)      becomes      DQ(x) ─> convolution by DQ(weights) ─> Q

So they run as the same network written with QuantizeLinear and DequantizeLinear does. Those of
``com.microsoft`` are what ONNX Runtime's quantisation writes where ONNX has no such operator.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from braid.engine.onnx.builder import Builder, UnsupportedUse, emit_matmul, transposed
from braid.engine.onnx.families.linear import convolution_window, lower_convolution
from braid.engine.onnx.families.signals import pooling_window
from braid.engine.onnx.lowering_table import Maybe, contributed, given, lowers, lowers_to
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.tensors import dtype_name


def _grid(node: OnnxNode) -> dict[str, Any]:
    dtype = node.integer("output_dtype", 0)
    return {
        "axis": node.integer("axis", 1),
        "block": node.integer("block_size", 0),
        "dtype": dtype_name(dtype) if dtype else None,
    }


@lowers("DequantizeLinear", 10, 28, "8 to 32 bits; by tensor, axis or block")
def dequantize_linear(node: OnnxNode, to: Builder) -> None:
    operands = [node.operand(0), node.operand(1), node.maybe(2)]
    to.emit("braid.dequantise", operands, node.output, **_grid(node))


@lowers("QuantizeLinear", 10, 28, "8 and 16 bits; by tensor, axis or block")
def quantize_linear(node: OnnxNode, to: Builder) -> None:
    if node.integer("precision", 0) not in (0, 1):
        raise UnsupportedUse("a precision other than FP32")
    node.without_effect("saturate")  # of 8-bit floats only
    operands = [node.operand(0), node.operand(1), node.maybe(2)]
    to.emit("braid.quantise", operands, node.output, **_grid(node))


lowers_to("braid.matmul_integer", "MatMulInteger", 10, 10, operands=(0, 1, Maybe(2), Maybe(3)))


@lowers("ConvInteger", 10, 10, "even padding")
def conv_integer(node: OnnxNode, to: Builder) -> None:
    operands = [node.operand(0), node.operand(1), node.maybe(2), node.maybe(3)]
    window, pads, auto_pad = convolution_window(node, to, operands[1])
    node.integers("kernel_shape")
    if auto_pad.startswith("SAME") or any(before != after for before, after in pads):
        raise UnsupportedUse("auto_pad, or uneven padding")
    window = replace(window, padding=[before for before, _ in pads])
    to.emit("braid.convolution_integer", operands, node.output, **asdict(window))


contributed("DequantizeLinear")(dequantize_linear)
contributed("QuantizeLinear")(quantize_linear)


def _wide(to: Builder, value: str, scale: str, zero: str, axis: int = 0) -> str:
    """Dequantise; several scales lie along ``axis``."""
    return to.emit("braid.dequantise", [value, scale, zero], axis=axis, block=0, dtype=None)


def _operand(node: OnnxNode, to: Builder, first: int, axis: int = 0) -> str:
    """Dequantise the operand at ``first``, whose scale and zero point follow."""
    return _wide(to, node.operand(first), node.operand(first + 1), node.maybe(first + 2), axis)


def _rounded(node: OnnxNode, to: Builder, value: str, first: int) -> None:
    """Quantise to the scale and zero point at ``first``."""
    operands = [value, node.operand(first), node.maybe(first + 1)]
    to.emit("braid.quantise", operands, node.output, axis=1, block=0, dtype=None)


def _bias(to: Builder, bias: str, scales: Sequence[str]) -> str:
    """Dequantise a bias in 32 bits; its scale is the product of two."""
    if not bias:
        return ""
    one, other = scales
    return _wide(to, bias, to.emit("aten.mul", [one, other]), "")


@lowers("QLinearConv", 10, 10)
def qlinear_conv(node: OnnxNode, to: Builder) -> None:
    x, weight = _operand(node, to, 0), _operand(node, to, 3)
    bias = _bias(to, node.maybe(8), (node.operand(1), node.operand(4)))
    _rounded(node, to, lower_convolution(node, to, (x, weight, bias), ("",)), 6)


@lowers("QLinearMatMul", 10, 21)
def qlinear_matmul(node: OnnxNode, to: Builder) -> None:
    scale = to.constant(node.operand(1))
    if scale is None or scale.numel() > 1:
        operands = [node.operand(i) for i in range(8)]
        to.emit("braid.quantised_matmul", operands, node.output)
        return
    a, b = _operand(node, to, 0), _operand(node, to, 3, axis=-1)
    _rounded(node, to, emit_matmul(to, a, b, ("",)), 6)


@contributed("QGemm")
def qgemm(node: OnnxNode, to: Builder) -> None:
    """alpha * A' B' + C; FP32 without a scale for the result."""
    alpha = node.real("alpha", 1.0)
    flips_b = node.flag("transB")
    a, b = _operand(node, to, 0), _operand(node, to, 3, axis=0 if flips_b else 1)
    if node.flag("transA") or alpha != 1.0:
        raise UnsupportedUse("transA, or alpha other than 1")
    bias = _bias(to, node.maybe(6), (node.operand(1), node.operand(4)))
    if bias and (content := to.constant(bias)) is not None:
        bias = to.add_constant(f"{bias}/flat", content.reshape(-1))
    operands = [a, b if flips_b else transposed(to, b), bias]
    if not node.maybe(7):
        to.emit("aten.linear", operands, node.output)
        return
    _rounded(node, to, to.emit("aten.linear", operands), 7)


def _enter(op_type: str, kind: str, operands: int = 1, **attributes: Any) -> None:
    """Enter an operator on integers: ``kind`` on its dequantised operands."""

    @contributed(op_type)
    def through(node: OnnxNode, to: Builder) -> None:
        values = [_operand(node, to, 3 * place) for place in range(operands)]
        _rounded(node, to, to.emit(kind, values, **given(node, attributes)), 3 * operands)


_enter("QLinearAdd", "aten.add", 2)
_enter("QLinearMul", "aten.mul", 2)
_enter("QLinearSigmoid", "aten.sigmoid")
_enter("QLinearLeakyRelu", "aten.leaky_relu", negative_slope=("alpha", 0.01))


@contributed("QLinearConcat")
def qlinear_concat(node: OnnxNode, to: Builder) -> None:
    count = len(node.all_operands())
    if count < 5 or count % 3 != 2:
        raise UnsupportedUse(f"{count} operands")
    parts = [_operand(node, to, first) for first in range(2, count, 3)]
    _rounded(node, to, to.emit("aten.cat", parts, dim=node.integer("axis")), 0)


@contributed("QLinearAveragePool")
def qlinear_average_pool(node: OnnxNode, to: Builder) -> None:
    node.require("channels_last", 0)
    count_padding, window = node.flag("count_include_pad"), pooling_window(node)
    x = _operand(node, to, 0)
    y = to.emit("braid.avg_pool", [x], count_padding=count_padding, **window)
    _rounded(node, to, y, 3)


@contributed("QLinearGlobalAveragePool")
def qlinear_global_average_pool(node: OnnxNode, to: Builder) -> None:
    node.require("channels_last", 0)
    _rounded(node, to, to.emit("braid.global_avg_pool", [_operand(node, to, 0)]), 3)


@contributed("QLinearSoftmax")
def qlinear_softmax(node: OnnxNode, to: Builder) -> None:
    if node.integer("opset") < 13:
        raise UnsupportedUse("softmax over several axes")
    y = to.emit("aten.softmax", [_operand(node, to, 0)], dim=node.integer("axis", -1))
    _rounded(node, to, y, 3)
