"""Matrix products."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.lowering_table import lowers


@lowers("aten.linear.default")
def linear(use: Use, to: Builder) -> None:
    """x times the transposed weight, plus the bias."""
    weight = use.tensor("weight")
    operands = [use.tensor("input"), weight, use.maybe("bias")]
    to.emit("aten.linear", operands, use.output)


@lowers("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def matmul(use: Use, to: Builder) -> None:
    """Matrix product; by a constant matrix, a linear operator with the weight transposed."""
    other = "other" if use.target == "aten.matmul.default" else "mat2"
    a, b = use.tensor("self"), use.tensor(other)
    weight = to.constant(b)
    if weight is not None and weight.dim() == 2 and weight.is_floating_point():
        transposed = to.add_constant(f"{b}/transposed", weight.t())
        to.emit("aten.linear", [a, transposed, ""], use.output)
    else:
        to.emit("aten.matmul", [a, b], use.output)


@lowers("aten.addmm.default", "aten.baddbmm.default")
def addmm(use: Use, to: Builder) -> None:
    """A matrix product plus another matrix."""
    first, second = ("mat1", "mat2") if "addmm" in use.target else ("batch1", "batch2")
    use.require("alpha", 1)
    use.require("beta", 1)
    bias, a, b = use.tensor("self"), use.tensor(first), use.tensor(second)
    weight, shift = to.constant(b), to.constant(bias)
    if weight is not None and shift is not None and weight.dim() == 2 and shift.dim() == 1:
        transposed = to.add_constant(f"{b}/transposed", weight.t())
        to.emit("aten.linear", [a, transposed, bias], use.output)
    else:
        to.emit("aten.add", [bias, to.emit("aten.matmul", [a, b])], use.output)


@lowers("aten.einsum.default")
def einsum(use: Use, to: Builder) -> None:
    """Einstein summation."""
    use.require("path")
    equation = use.text("equation", "").replace(" ", "")
    to.emit("aten.einsum", use.tensors("tensors"), use.output, equation=equation)
