"""Lowering of sampling at computed positions, unpooling, Fourier transforms."""

from __future__ import annotations

from onnx import TensorProto

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.families.layers.convolution import spatial_rank
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.tensors import dtype_name

_MODES = {"linear": "bilinear", "cubic": "bicubic"}


@lowers("GridSample", 16, 22, "2 and 3 axes (cubic: 2)")
def grid_sample(node: OnnxNode, to: Builder) -> None:
    mode = node.choice("mode", "bilinear", ("linear", "bilinear", "nearest", "cubic", "bicubic"))
    padding = node.choice("padding_mode", "zeros", ("zeros", "border", "reflection"))
    to.emit(
        "aten.grid_sample",
        [node.operand(0), node.operand(1)],
        node.output,
        mode=_MODES.get(mode, mode),
        padding=padding,
        align_corners=node.flag("align_corners"),
    )


@lowers("AffineGrid", 20, 20, "the size may be computed")
def affine_grid(node: OnnxNode, to: Builder) -> None:
    align_corners, host = node.flag("align_corners"), {"size": node.operand(1)}
    operands = [node.operand(0)]
    to.emit("aten.affine_grid", operands, node.output, host=host, align_corners=align_corners)


@lowers("DeformConv", 19, 22, "2 axes")
def deform_conv(node: OnnxNode, to: Builder) -> None:
    weight = node.operand(1)
    if spatial_rank(node, to, weight) not in (0, 2):
        raise UnsupportedUse("other than two axes")
    node.integers("kernel_shape")
    to.emit(
        "braid.deformable_convolution",
        [node.operand(0), weight, node.operand(2), node.maybe(3), node.maybe(4)],
        node.output,
        stride=node.integers("strides") or [1, 1],
        pads=node.integers("pads") or [0] * 4,
        dilation=node.integers("dilations") or [1, 1],
        groups=node.integer("group", 1),
        offset_groups=node.integer("offset_group", 1),
    )


@lowers("Col2Im", 18, 18, "1 and 2 axes")
def col2im(node: OnnxNode, to: Builder) -> None:
    blocks = to.literal(node.operand(2))
    image = to.literal(node.operand(1))
    known = blocks if blocks is not None else image
    axes = len(known) if known is not None else len(node.integers("strides") or [1, 1])
    if axes > 2:
        raise UnsupportedUse(f"{axes} axes")
    to.emit(
        "braid.col2im",
        [node.operand(0)],
        node.output,
        host={"image": node.operand(1), "block": node.operand(2)},
        stride=node.integers("strides") or [1] * axes,
        pads=node.integers("pads") or [0] * 2 * axes,
        dilation=node.integers("dilations") or [1] * axes,
    )


@lowers("MaxUnpool", 9, 22)
def max_unpool(node: OnnxNode, to: Builder) -> None:
    kernel = node.integers("kernel_shape")
    if kernel is None:
        raise UnsupportedUse("kernel_shape is missing")
    rank = len(kernel)
    to.emit(
        "braid.max_unpool",
        [node.operand(0), node.operand(1)],
        node.output,
        host={"output_shape": node.maybe(2)},
        kernel=kernel,
        stride=node.integers("strides") or [1] * rank,
        pads=node.integers("pads") or [0] * 2 * rank,
    )


@lowers("TensorScatter", 24, 24)
def tensor_scatter(node: OnnxNode, to: Builder) -> None:
    circular = node.choice("mode", "linear", ("linear", "circular")) == "circular"
    operands = [node.operand(0), node.operand(1), node.maybe(2)]
    axis = node.integer("axis", -2)
    to.emit("braid.cache_update", operands, node.output, axis=axis, circular=circular)


@lowers("BitCast", 26, 26, "not to or from strings, 8-bit floats or 4-bit integers")
def bit_cast(node: OnnxNode, to: Builder) -> None:
    to.emit("braid.bit_cast", [node.operand(0)], node.output, dtype=dtype_name(node.integer("to")))


@lowers("DFT", 17, 20, "length and axis may be computed")
def dft(node: OnnxNode, to: Builder) -> None:
    flags = {"inverse": node.flag("inverse"), "onesided": node.flag("onesided")}
    host = {"length": node.maybe(1)}
    if node.version < 20:
        axis = node.integer("axis", 1)
        to.emit("braid.dft", [node.operand(0)], node.output, host=host, axis=axis, **flags)
        return
    host["axis"] = node.maybe(2)
    to.emit("braid.dft", [node.operand(0)], node.output, host=host, **flags)


@lowers("STFT", 17, 17, "step and length may be computed")
def stft(node: OnnxNode, to: Builder) -> None:
    host = {"step": node.operand(1), "length": node.maybe(3)}
    onesided = node.flag("onesided", True)
    operands = [node.operand(0), node.maybe(2)]
    to.emit("braid.stft", operands, node.output, host=host, onesided=onesided)


_WINDOWS = {
    "BlackmanWindow": [0.42, 0.5, 0.08],
    "HammingWindow": [25 / 46, 21 / 46, 0.0],
    "HannWindow": [0.5, 0.5, 0.0],
}


def _enter_window(op_type: str, coefficients: list[float]) -> None:
    @lowers(op_type, 17, 17, "the size may be computed")
    def window(node: OnnxNode, to: Builder) -> None:
        to.emit(
            "braid.window",
            [],
            node.output,
            host={"size": node.operand(0)},
            coefficients=coefficients,
            periodic=node.flag("periodic", True),
            dtype=dtype_name(node.integer("output_datatype", TensorProto.FLOAT)),
        )


for _name, _coefficients in _WINDOWS.items():
    _enter_window(_name, _coefficients)
