"""Convolutions."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.lowering_table import lowers


def spread(values: list[int], axes: int) -> list[int]:
    """One value for all axes, or one for each."""
    if len(values) not in (1, axes):
        raise UnsupportedUse(f"{len(values)} values for {axes} axes")
    return values * axes if len(values) == 1 else values


@lowers(*(f"aten.conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")))
def conv(use: Use, to: Builder) -> None:
    """Convolution; padding by amounts or by the words ``same`` and ``valid``."""
    axes = int(use.target[len("aten.conv")])
    stride = spread(use.integers("stride", [1]), axes)
    dilation = spread(use.integers("dilation", [1]), axes)
    x = use.tensor("input")
    if use.rank("input") != axes + 2:
        raise UnsupportedUse("an input without a batch axis")
    if use.target.endswith(".padding"):
        x, padding = _named_padding(use, to, x, dilation)
    else:
        padding = spread(use.integers("padding", [0]), axes)
    to.emit(
        "aten.convolution",
        [x, use.tensor("weight"), use.maybe("bias")],
        use.output,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=False,
        output_padding=[0] * axes,
        groups=use.integer("groups", 1),
    )


def _named_padding(use: Use, to: Builder, x: str, dilation: list[int]) -> tuple[str, list[int]]:
    word = use.text("padding", "valid")
    if word == "valid":
        return x, [0] * len(dilation)
    kernel = use.shape_of("weight")[2:]
    if word != "same" or not all(isinstance(extent, int) for extent in kernel):
        raise UnsupportedUse(f"padding={word}")
    totals = [(int(k) - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    if all(total % 2 == 0 for total in totals):
        return x, [total // 2 for total in totals]
    begins, ends = [t // 2 for t in totals], [t - t // 2 for t in totals]
    pads = [0, 0, *begins, 0, 0, *ends]
    return to.emit("braid.pad", [x], pads=pads, mode="constant", value=0.0), [0] * len(dilation)


@lowers("aten.convolution.default", "aten._convolution.default")
def convolution(use: Use, to: Builder) -> None:
    """Convolution in its general form, transposed or not."""
    use.without_effect("benchmark", "deterministic", "cudnn_enabled", "allow_tf32")
    axes = use.rank("input") - 2
    to.emit(
        "aten.convolution",
        [use.tensor("input"), use.tensor("weight"), use.maybe("bias")],
        use.output,
        stride=spread(use.integers("stride"), axes),
        padding=spread(use.integers("padding"), axes),
        dilation=spread(use.integers("dilation"), axes),
        transposed=use.flag("transposed"),
        output_padding=spread(use.integers("output_padding"), axes),
        groups=use.integer("groups"),
    )


@lowers(
    "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"
)
def conv_transpose(use: Use, to: Builder) -> None:
    """Transposed convolution."""
    axes = int(use.target[len("aten.conv_transpose")])
    if use.rank("input") != axes + 2:
        raise UnsupportedUse("an input without a batch axis")
    to.emit(
        "aten.convolution",
        [use.tensor("input"), use.tensor("weight"), use.maybe("bias")],
        use.output,
        stride=spread(use.integers("stride", [1]), axes),
        padding=spread(use.integers("padding", [0]), axes),
        dilation=spread(use.integers("dilation", [1]), axes),
        transposed=True,
        output_padding=spread(use.integers("output_padding", [0]), axes),
        groups=use.integer("groups", 1),
    )
