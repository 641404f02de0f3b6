"""Lowering of matrix products and convolutions."""

from __future__ import annotations

from braid.engine.lowering.builder import (
    Builder,
    UnsupportedUse,
    emit_convolution,
    emit_matmul,
    transposed,
)
from braid.engine.ops.families.linear import ConvolutionWindow
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


def spread(values: list[int], axes: int) -> list[int]:
    """Return one value for each axis, from one for all or one for each."""
    if len(values) not in (1, axes):
        raise UnsupportedUse(f"{len(values)} values for {axes} axes")
    return values * axes if len(values) == 1 else values


def _operands(call: CallArguments, axes: int) -> list[str]:
    if call.rank("input") != axes + 2:
        raise UnsupportedUse("an input without a batch axis")
    return [call.tensor("input"), call.tensor("weight"), call.maybe("bias")]


def _window(
    call: CallArguments, axes: int, padding: list[int] | None = None, transposed: bool = False
) -> ConvolutionWindow:
    """Window of a convolution; ``padding`` is given where the call has none in numbers."""

    def each(name: str, usual: int) -> list[int]:
        return spread(call.integers(name, [usual]), axes)

    return ConvolutionWindow(
        stride=each("stride", 1),
        padding=each("padding", 0) if padding is None else padding,
        dilation=each("dilation", 1),
        transposed=transposed,
        output_padding=each("output_padding", 0),
        groups=call.integer("groups", 1),
    )


@lowers(*(f"aten.conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")))
def conv(call: CallArguments, to: Builder) -> None:
    """Convolution; padding by amounts or by the words ``same`` and ``valid``."""
    axes = int(call.target[len("aten.conv")])
    x, *weights = _operands(call, axes)
    padding = None
    if call.target.endswith(".padding"):
        x, padding = _named_padding(call, to, x, spread(call.integers("dilation", [1]), axes))
    emit_convolution(to, [x, *weights], call.output, _window(call, axes, padding))


def _named_padding(
    call: CallArguments, to: Builder, x: str, dilation: list[int]
) -> tuple[str, list[int]]:
    """The input, padded if it is padded unevenly, and the padding of the convolution."""
    word = call.text("padding", "valid")
    if word == "valid":
        return x, [0] * len(dilation)
    kernel = call.shape_of("weight")[2:]
    if word != "same" or not all(isinstance(extent, int) for extent in kernel):
        raise UnsupportedUse(f"padding={word}")
    totals = [(int(k) - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    if all(total % 2 == 0 for total in totals):
        return x, [total // 2 for total in totals]
    begins, ends = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [0, 0, *begins, 0, 0, *ends]
    return to.emit("braid.pad", [x], pads=pads, mode="constant", value=0.0), [0] * len(dilation)


@lowers("aten.convolution.default", "aten._convolution.default")
def convolution(call: CallArguments, to: Builder) -> None:
    call.without_effect("benchmark", "deterministic", "cudnn_enabled", "allow_tf32")
    axes = call.rank("input") - 2
    window = _window(call, axes, transposed=call.flag("transposed"))
    emit_convolution(to, _operands(call, axes), call.output, window)


@lowers(
    "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"
)
def conv_transpose(call: CallArguments, to: Builder) -> None:
    axes = int(call.target[len("aten.conv_transpose")])
    window = _window(call, axes, transposed=True)
    emit_convolution(to, _operands(call, axes), call.output, window)
