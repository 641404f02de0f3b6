"""Matrix products, sums and convolutions as both formats write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from braid.engine.lowering.builder import Builder
from braid.engine.ops.families.linear import ConvolutionWindow


def transposed(to: Builder, matrix: str) -> str:
    """A matrix with its axes swapped: at once if it is a constant."""
    if to.constant(matrix) is not None:
        return to.add_transposed(matrix)
    return to.emit("aten.permute", [matrix], dims=[1, 0])


def emit_matmul(to: Builder, a: str, b: str, outputs: Sequence[str]) -> str:
    """Matrix product; by a constant matrix, a linear operator with the weight transposed."""
    weight = to.constant(b)
    if weight is not None and weight.dim() == 2 and weight.is_floating_point():
        return to.emit("aten.linear", [a, transposed(to, b), ""], outputs)
    return to.emit("aten.matmul", [a, b], outputs)


def emit_sum(to: Builder, a: str, b: str, output: str) -> None:
    """Sum of two values; one is the bias of a linear operator where it can be."""
    if not (to.give_bias(a, b, output) or to.give_bias(b, a, output)):
        to.emit("aten.add", [a, b], [output])


def emit_convolution(
    to: Builder, operands: Sequence[str], outputs: Sequence[str], window: ConvolutionWindow
) -> str:
    """Convolution of [x, weight, bias or ""]; returns the value of its result."""
    return to.emit("aten.convolution", operands, outputs, **asdict(window))
