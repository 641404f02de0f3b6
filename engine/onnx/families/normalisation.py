"""Lowering of normalisations."""

from braid.engine.onnx.builder import Builder
from braid.engine.onnx.lowering_table import lowers, lowers_to
from braid.engine.onnx.node import OnnxNode

lowers_to(
    *("braid.instance_norm", "InstanceNormalization", 6, 22), operands=3, eps=("epsilon", 1e-5)
)
lowers_to("braid.lp_normalise", "LpNormalization", 1, 22, dim=("axis", -1), p=("p", 2))
lowers_to(
    *("braid.rms_norm", "RMSNormalization", 23, 23, 2),
    ignored=("stash_type",),
    axis=("axis", -1),
    eps=("epsilon", 1e-5),
)
lowers_to(  # weights are by group before opset 21, by channel since
    *("braid.group_norm", "GroupNormalization", 18, 21, 3),
    ignored=("stash_type",),
    groups=("num_groups", int),
    eps=("epsilon", 1e-5),
)
lowers_to(
    *("braid.lrn", "LRN", 1, 13),
    size=("size", int),
    alpha=("alpha", 1e-4),
    beta=("beta", 0.75),
    bias=("bias", 1.0),
)


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


def _enter_softmax(op_type: str, kind: str) -> None:
    """Along an axis; before opset 13, over everything from the axis on."""

    @lowers(op_type, 1, 13)
    def softmax(node: OnnxNode, to: Builder) -> None:
        axis = node.integer("axis", 1 if node.version < 13 else -1)
        if node.version >= 13 or axis == -1:
            to.emit(kind, [node.operand(0)], node.output, dim=axis)
        else:
            function = kind.partition(".")[2]
            to.emit("braid.from_axis", [node.operand(0)], node.output, axis=axis, function=function)


_enter_softmax("Softmax", "aten.softmax")
_enter_softmax("LogSoftmax", "aten.log_softmax")
_enter_softmax("Hardmax", "braid.hardmax")
