"""Lowering of matrix products."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.linear import emit_matmul, transposed
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers


@lowers("aten.linear.default")
def linear(call: CallArguments, to: Builder) -> None:
    weight = call.tensor("weight")
    operands = [call.tensor("input"), weight, call.maybe("bias")]
    to.emit("aten.linear", operands, call.output)


@lowers("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def matmul(call: CallArguments, to: Builder) -> None:
    other = "other" if call.target == "aten.matmul.default" else "mat2"
    emit_matmul(to, call.tensor("self"), call.tensor(other), call.output)


@lowers("aten.addmm.default", "aten.baddbmm.default")
def addmm(call: CallArguments, to: Builder) -> None:
    first, second = ("mat1", "mat2") if "addmm" in call.target else ("batch1", "batch2")
    call.require("alpha", 1)
    call.require("beta", 1)
    bias, a, b = call.tensor("self"), call.tensor(first), call.tensor(second)
    weight, shift = to.constant(b), to.constant(bias)
    if weight is not None and shift is not None and weight.dim() == 2 and shift.dim() == 1:
        to.emit("aten.linear", [a, transposed(to, b), bias], call.output)
    else:
        to.emit("aten.add", [bias, to.emit("aten.matmul", [a, b])], call.output)


@lowers("aten.einsum.default")
def einsum(call: CallArguments, to: Builder) -> None:
    call.require("path")
    equation = call.text("equation", "").replace(" ", "")
    to.emit("aten.einsum", call.tensors("tensors"), call.output, equation=equation)
