"""Matrix products."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import Node


@lowers("MatMul", 1, 13, "by a constant matrix it becomes linear")
def matmul(node: Node, to: Builder) -> None:
    """Matrix product; by a constant matrix, a linear operator with the weight transposed."""
    a, b = node.operand(0), node.operand(1)
    weight = to.constant(b)
    if weight is not None and weight.dim() == 2 and weight.is_floating_point():
        transposed = to.add_constant(f"{b}/transposed", weight.t())
        to.emit("aten.linear", [a, transposed, ""], node.output)
    else:
        to.emit("aten.matmul", [a, b], node.output)


@lowers("Gemm", 7, 13)
def gemm(node: Node, to: Builder) -> None:
    """alpha * A' B' + beta * C; the constant factors go into the constants where they can."""
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    a, b, c = node.operand(0), node.operand(1), node.maybe(2)
    if node.flag("transA"):
        a = to.emit("aten.permute", [a], dims=[1, 0])
    if not node.flag("transB"):
        b = _transposed(b, to)
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


def _transposed(matrix: str, to: Builder) -> str:
    content = to.constant(matrix)
    if content is not None:
        return to.add_constant(f"{matrix}/transposed", content.t())
    return to.emit("aten.permute", [matrix], dims=[1, 0])


@lowers("Einsum", 12, 28)
def einsum(node: Node, to: Builder) -> None:
    """Einstein summation."""
    equation = node.text("equation").replace(" ", "")
    to.emit("aten.einsum", node.all_operands(), node.output, equation=equation)


@lowers("Det", 11, 22)
def det(node: Node, to: Builder) -> None:
    """Determinant."""
    to.emit("aten.det", [node.operand(0)], node.output)
