"""Lowering of operators on quantised integers."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.families.layers.convolution import AUTO_PADS, spatial_rank, split_pads
from braid.engine.onnx.lowering_table import lowers
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


@lowers("MatMulInteger", 10, 10)
def matmul_integer(node: OnnxNode, to: Builder) -> None:
    operands = [node.operand(0), node.operand(1), node.maybe(2), node.maybe(3)]
    to.emit("braid.matmul_integer", operands, node.output)


def _window(node: OnnxNode, to: Builder, weight: str) -> dict[str, Any]:
    if node.choice("auto_pad", "NOTSET", AUTO_PADS) not in ("NOTSET", "VALID"):
        raise UnsupportedUse("auto_pad")
    rank = spatial_rank(node, to, weight)
    pads = split_pads(node.integers("pads") or [0] * 2 * rank)
    if any(before != after for before, after in pads):
        raise UnsupportedUse("uneven padding")
    node.integers("kernel_shape")
    return {
        "stride": node.integers("strides") or [1] * rank,
        "padding": [before for before, _ in pads],
        "dilation": node.integers("dilations") or [1] * rank,
        "groups": node.integer("group", 1),
    }


@lowers("ConvInteger", 10, 10, "even padding")
def conv_integer(node: OnnxNode, to: Builder) -> None:
    operands = [node.operand(0), node.operand(1), node.maybe(2), node.maybe(3)]
    window = _window(node, to, operands[1])
    to.emit("braid.convolution_integer", operands, node.output, **window)
