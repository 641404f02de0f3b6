"""Lowering of pooling."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.families.layers.convolution import AUTO_PADS
from braid.engine.onnx.lowering_table import lowers, lowers_to
from braid.engine.onnx.node import OnnxNode

lowers_to("braid.global_avg_pool", "GlobalAveragePool", 1, 22)
lowers_to("braid.global_max_pool", "GlobalMaxPool", 1, 22)


def pooling_window(node: OnnxNode) -> dict[str, Any]:
    kernel = node.integers("kernel_shape")
    if not kernel:
        raise UnsupportedUse("kernel_shape is missing")
    if len(kernel) > 3:
        raise UnsupportedUse(f"pooling over {len(kernel)} axes")
    rank = len(kernel)
    auto_pad = node.choice("auto_pad", "NOTSET", AUTO_PADS)
    pads: list[int] | str = node.integers("pads") or [0] * 2 * rank
    if auto_pad == "VALID":
        pads = [0] * 2 * rank
    elif auto_pad != "NOTSET":
        pads = auto_pad.lower()
    if not isinstance(pads, str) and min(pads) < 0:
        raise UnsupportedUse(f"pads={pads}")
    return {
        "kernel": kernel,
        "stride": node.integers("strides") or [1] * rank,
        "pads": pads,
        "dilation": node.integers("dilations") or [1] * rank,
        "ceil_mode": node.flag("ceil_mode"),
    }


@lowers("MaxPool", 1, 22, "1 to 3 axes, with indices")
def max_pool(node: OnnxNode, to: Builder) -> None:
    window = pooling_window(node)
    column_major = node.flag("storage_order")
    if node.wants(1):
        outputs = [*node.outputs[:1], node.outputs[1]]
        kind = "braid.max_pool_with_indices"
        to.emit(kind, [node.operand(0)], outputs, column_major=column_major, **window)
    else:
        to.emit("braid.max_pool", [node.operand(0)], node.outputs[:1], **window)


@lowers("AveragePool", 7, 22, "1 to 3 axes")
def average_pool(node: OnnxNode, to: Builder) -> None:
    count_padding = node.flag("count_include_pad")
    to.emit(
        "braid.avg_pool",
        [node.operand(0)],
        node.output,
        count_padding=count_padding,
        **pooling_window(node),
    )


@lowers("LpPool", 2, 22, "1 to 3 axes")
def lp_pool(node: OnnxNode, to: Builder) -> None:
    p = node.integer("p", 2)
    to.emit("braid.lp_pool", [node.operand(0)], node.output, p=p, **pooling_window(node))


@lowers("GlobalLpPool", 2, 22)
def global_lp_pool(node: OnnxNode, to: Builder) -> None:
    p = node.integer("p", 2)
    to.emit("braid.global_lp_pool", [node.operand(0)], node.output, p=p)
