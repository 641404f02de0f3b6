"""Lowering of operators that pick and place elements by index."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import OnnxNode


@lowers("Gather", 1, 13)
def gather(node: OnnxNode, to: Builder) -> None:
    """Pick slices by index; by one constant index, a view."""
    x, indices, axis = node.operand(0), node.operand(1), node.integer("axis", 0)
    content = to.constant(indices)
    if content is not None and content.dim() == 0:
        to.emit("aten.select", [x], node.output, dim=axis, index=int(content.item()))
        return
    wrap = content is None or bool(content.numel() and (content < 0).any())
    to.emit("braid.gather", [x, indices], node.output, axis=axis, wrap=wrap)


@lowers("GatherElements", 11, 13)
def gather_elements(node: OnnxNode, to: Builder) -> None:
    operands = [node.operand(0), node.operand(1)]
    to.emit("braid.gather_elements", operands, node.output, axis=node.integer("axis", 0))


@lowers("GatherND", 11, 13)
def gather_nd(node: OnnxNode, to: Builder) -> None:
    operands = [node.operand(0), node.operand(1)]
    batch_dims = node.integer("batch_dims", 0)
    to.emit("braid.gather_nd", operands, node.output, batch_dims=batch_dims)


_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _scatter_elements(node: OnnxNode, to: Builder) -> None:
    reduction = node.choice("reduction", "none", _REDUCTIONS)
    operands = [node.operand(i) for i in range(3)]
    axis = node.integer("axis", 0)
    to.emit("braid.scatter_elements", operands, node.output, axis=axis, reduction=reduction)


lowers("Scatter", 9, 9)(_scatter_elements)
lowers("ScatterElements", 11, 18)(_scatter_elements)


@lowers("ScatterND", 11, 18)
def scatter_nd(node: OnnxNode, to: Builder) -> None:
    reduction = node.choice("reduction", "none", _REDUCTIONS)
    operands = [node.operand(i) for i in range(3)]
    to.emit("braid.scatter_nd", operands, node.output, reduction=reduction)


@lowers("OneHot", 9, 28)
def one_hot(node: OnnxNode, to: Builder) -> None:
    operands, host = [node.operand(0), node.operand(2)], {"depth": node.operand(1)}
    axis = node.integer("axis", -1)
    to.emit("braid.one_hot", operands, node.output, host=host, axis=axis)


@lowers("NonZero", 9, 13, "only of constants and shapes")
def non_zero(node: OnnxNode, to: Builder) -> None:
    """Positions of non-zero elements; only of values known at specialisation."""
    to.emit("braid.nonzero", [node.operand(0)], node.output)


@lowers("Compress", 9, 28, "only by a constant condition")
def compress(node: OnnxNode, to: Builder) -> None:
    """Pick the slices for which a constant condition holds."""
    axis = node.integer("axis") if node.has("axis") else None
    host = {"condition": node.operand(1)}
    to.emit("braid.compress", [node.operand(0)], node.output, host=host, axis=axis)
