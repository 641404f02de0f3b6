"""Lowering of normalisations."""

from __future__ import annotations

from braid.engine.onnx.builder import Builder, UnsupportedUse
from braid.engine.onnx.lowering_table import lowers, lowers_to
from braid.engine.onnx.node import OnnxNode

lowers_to(
    *("braid.instance_norm", "InstanceNormalization", 6, 22), operands=3, eps=("epsilon", 1e-5)
)
lowers_to("braid.lp_normalise", "LpNormalization", 1, 22, dim=("axis", -1), p=("p", 2))


@lowers("BatchNormalization", 7, 15, "at inference, with stored statistics")
def batch_normalization(node: OnnxNode, to: Builder) -> None:
    node.without_effect("momentum")
    node.require("training_mode", 0)
    node.require("spatial", 1)
    operands = [node.operand(i) for i in range(5)]
    eps = node.real("epsilon", 1e-5)
    to.emit("aten.batch_norm", operands, node.outputs[:1], eps=eps)


@lowers("LayerNormalization", 17, 17)
def layer_normalization(node: OnnxNode, to: Builder) -> None:
    axis, eps = node.integer("axis", -1), node.real("epsilon", 1e-5)
    node.without_effect("stash_type")  # torch computes half types in FP32 anyway
    x, scale, bias = node.operand(0), node.operand(1), node.maybe(2)
    if node.wants(0):
        to.emit("aten.layer_norm", [x, scale, bias], node.outputs[:1], axis=axis, eps=eps)
    if len(node.outputs) > 1:
        names = (*node.outputs[1:], "")[:2]
        to.emit("braid.layer_norm_statistics", [x], names, axis=axis, eps=eps)


@lowers("RMSNormalization", 23, 23)
def rms_normalization(node: OnnxNode, to: Builder) -> None:
    axis, eps = node.integer("axis", -1), node.real("epsilon", 1e-5)
    node.without_effect("stash_type")
    operands = [node.operand(0), node.operand(1)]
    to.emit("braid.rms_norm", operands, node.output, axis=axis, eps=eps)


@lowers("GroupNormalization", 18, 21)
def group_normalization(node: OnnxNode, to: Builder) -> None:
    """Normalise groups of channels; weights by group before opset 21, by channel since."""
    eps, groups = node.real("epsilon", 1e-5), node.integer("num_groups")
    node.without_effect("stash_type")
    operands = [node.operand(i) for i in range(3)]
    to.emit("braid.group_norm", operands, node.output, groups=groups, eps=eps)


@lowers("LRN", 1, 13)
def lrn(node: OnnxNode, to: Builder) -> None:
    to.emit(
        "braid.lrn",
        [node.operand(0)],
        node.output,
        size=node.integer("size"),
        alpha=node.real("alpha", 1e-4),
        beta=node.real("beta", 0.75),
        bias=node.real("bias", 1.0),
    )


@lowers("Softmax", 1, 13)
def softmax(node: OnnxNode, to: Builder) -> None:
    """Softmax along an axis; before opset 13, over everything from the axis on."""
    _softmax(node, to, "aten.softmax", "softmax")


@lowers("LogSoftmax", 1, 13)
def log_softmax(node: OnnxNode, to: Builder) -> None:
    _softmax(node, to, "aten.log_softmax", "log_softmax")


@lowers("Hardmax", 1, 13)
def hardmax(node: OnnxNode, to: Builder) -> None:
    _softmax(node, to, "braid.hardmax", "hardmax")


def _softmax(node: OnnxNode, to: Builder, kind: str, function: str) -> None:
    axis = node.integer("axis", 1 if node.version < 13 else -1)
    if node.version >= 13 or axis == -1:
        to.emit(kind, [node.operand(0)], node.output, dim=axis)
        return
    if function not in ("softmax", "log_softmax", "hardmax"):
        raise UnsupportedUse(function)
    to.emit("braid.from_axis", [node.operand(0)], node.output, axis=axis, function=function)
