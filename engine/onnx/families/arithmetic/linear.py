"""Lowering of matrix products."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.linear import emit_matmul, transposed
from braid.engine.onnx.lowering_table import lowers, lowers_to
from braid.engine.onnx.node import OnnxNode

lowers_to("aten.det", "Det", 11, 22)


@lowers("MatMul", 1, 13, "by a constant matrix it becomes linear")
def matmul(node: OnnxNode, to: Builder) -> None:
    emit_matmul(to, node.operand(0), node.operand(1), node.output)


@lowers("Gemm", 7, 13)
def gemm(node: OnnxNode, to: Builder) -> None:
    """alpha * A' B' + beta * C; the constant factors go into the constants where they can."""
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    a, b, c = node.operand(0), node.operand(1), node.maybe(2)
    if node.flag("transA"):
        a = to.emit("aten.permute", [a], dims=[1, 0])
    if not node.flag("transB"):
        b = transposed(to, b)
    bias = to.constant(c) if c and beta != 0 else None
    weight = to.constant(b)
    as_bias = bias is not None and (
        weight is not None and bias.numel() == weight.shape[0] == bias.shape[-1]
    )
    vector = ""
    if as_bias and bias is not None and alpha == 1.0:
        flat = bias.reshape(-1) if beta == 1.0 else bias.reshape(-1) * beta
        vector = to.add_constant(f"{c}/bias", flat)
    done = bool(vector) or not c or beta == 0
    plain = done and alpha == 1.0
    y = to.emit("aten.linear", [a, b, vector], node.output if plain else ("",))
    if plain:
        return
    if alpha != 1.0:
        y = to.emit("braid.affine", [y], node.output if done else ("",), scale=alpha, shift=0.0)
    if not done:
        if beta != 1.0:
            c = to.emit("braid.affine", [c], scale=beta, shift=0.0)
        to.emit("aten.add", [y, c], node.output)


@lowers("Einsum", 12, 28)
def einsum(node: OnnxNode, to: Builder) -> None:
    equation = node.text("equation").replace(" ", "")
    to.emit("aten.einsum", node.all_operands(), node.output, equation=equation)
