"""Convolutions."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers


def spread(values: list[int], axes: int) -> list[int]:
    """One value for all axes, or one for each."""
    if len(values) not in (1, axes):
        raise UnsupportedUse(f"{len(values)} values for {axes} axes")
    return values * axes if len(values) == 1 else values


@lowers(*(f"aten.conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")))
def conv(call: CallArguments, to: Builder) -> None:
    """Convolution; padding by amounts or by the words ``same`` and ``valid``."""
    axes = int(call.target[len("aten.conv")])
    stride = spread(call.integers("stride", [1]), axes)
    dilation = spread(call.integers("dilation", [1]), axes)
    x = call.tensor("input")
    if call.rank("input") != axes + 2:
        raise UnsupportedUse("an input without a batch axis")
    if call.target.endswith(".padding"):
        x, padding = _named_padding(call, to, x, dilation)
    else:
        padding = spread(call.integers("padding", [0]), axes)
    to.emit(
        "aten.convolution",
        [x, call.tensor("weight"), call.maybe("bias")],
        call.output,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=False,
        output_padding=[0] * axes,
        groups=call.integer("groups", 1),
    )


def _named_padding(
    call: CallArguments, to: Builder, x: str, dilation: list[int]
) -> tuple[str, list[int]]:
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
    """Convolution in its general form, transposed or not."""
    call.without_effect("benchmark", "deterministic", "cudnn_enabled", "allow_tf32")
    axes = call.rank("input") - 2
    to.emit(
        "aten.convolution",
        [call.tensor("input"), call.tensor("weight"), call.maybe("bias")],
        call.output,
        stride=spread(call.integers("stride"), axes),
        padding=spread(call.integers("padding"), axes),
        dilation=spread(call.integers("dilation"), axes),
        transposed=call.flag("transposed"),
        output_padding=spread(call.integers("output_padding"), axes),
        groups=call.integer("groups"),
    )


@lowers(
    "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"
)
def conv_transpose(call: CallArguments, to: Builder) -> None:
    """Transposed convolution."""
    axes = int(call.target[len("aten.conv_transpose")])
    if call.rank("input") != axes + 2:
        raise UnsupportedUse("an input without a batch axis")
    to.emit(
        "aten.convolution",
        [call.tensor("input"), call.tensor("weight"), call.maybe("bias")],
        call.output,
        stride=spread(call.integers("stride", [1]), axes),
        padding=spread(call.integers("padding", [0]), axes),
        dilation=spread(call.integers("dilation", [1]), axes),
        transposed=True,
        output_padding=spread(call.integers("output_padding", [0]), axes),
        groups=call.integer("groups", 1),
    )
