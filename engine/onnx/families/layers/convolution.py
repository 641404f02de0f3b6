"""Convolutions."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import Node

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def spatial_rank(node: Node, to: Builder, weight: str) -> int:
    """Number of spatial axes as far as the node or its weight tells; 0 if they do not."""
    for attribute in ("kernel_shape", "strides", "dilations", "pads", "output_shape"):
        values = node.integers(attribute)
        if values:
            return len(values) // (2 if attribute == "pads" else 1)
    content = to.constant(weight)
    return content.dim() - 2 if content is not None else 0


def split_pads(pads: list[int]) -> list[tuple[int, int]]:
    """ONNX pads as (before, after) of each axis."""
    half = len(pads) // 2
    if len(pads) % 2:
        raise UnsupportedUse(f"pads={pads}")
    return list(zip(pads[:half], pads[half:], strict=True))


def pad_spatial(x: str, pads: list[tuple[int, int]], to: Builder, value: float = 0.0) -> str:
    """Pad (or crop) the spatial axes."""
    begins, ends = [before for before, _ in pads], [after for _, after in pads]
    return to.emit(
        "braid.pad",
        [x],
        pads=begins + ends,
        mode="constant",
        value=value,
        axes=list(range(2, 2 + len(pads))),
    )


@lowers("Conv", 1, 22, "any number of axes; uneven padding becomes an operator of its own")
def conv(node: Node, to: Builder) -> None:
    """Convolution with its padding."""
    x, weight, bias = node.operand(0), node.operand(1), node.maybe(2)
    rank = spatial_rank(node, to, weight)
    stride = node.integers("strides") or [1] * rank
    dilation = node.integers("dilations") or [1] * rank
    pads = split_pads(node.integers("pads") or [0] * 2 * rank)
    auto_pad = node.choice("auto_pad", "NOTSET", AUTO_PADS)
    kernel = node.integers("kernel_shape")
    content = to.constant(weight)
    if content is not None:
        actual = list(content.shape[2:])
        if kernel is not None and kernel != actual:
            raise UnsupportedUse(f"kernel_shape {kernel} of a weight with kernel {actual}")
        kernel = actual
    if auto_pad == "VALID":
        pads = [(0, 0)] * rank
    elif auto_pad != "NOTSET":
        if kernel is None:
            raise UnsupportedUse(f"auto_pad={auto_pad} without a known kernel")
        upper = auto_pad == "SAME_UPPER"
        if all(s == 1 for s in stride):  # then the input's shape does not matter
            totals = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
            pads = [_halves(total, upper) for total in totals]
        else:
            x = to.emit(
                "braid.pad_same", [x], kernel=kernel, stride=stride, dilation=dilation, upper=upper
            )
            pads = [(0, 0)] * rank
    if any(before != after or before < 0 for before, after in pads):
        x = pad_spatial(x, pads, to)
        pads = [(0, 0)] * rank
    to.emit(
        "aten.convolution",
        [x, weight, bias],
        node.output,
        stride=stride,
        padding=[before for before, _ in pads],
        dilation=dilation,
        transposed=False,
        output_padding=[0] * rank,
        groups=node.integer("group", 1),
    )


def _halves(total: int, upper: bool) -> tuple[int, int]:
    """Split padding in two; the odd one goes after for ``upper``, before otherwise."""
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


@lowers("ConvTranspose", 1, 22)
def conv_transpose(node: Node, to: Builder) -> None:
    """Transposed convolution; uneven padding crops the result."""
    x, weight, bias = node.operand(0), node.operand(1), node.maybe(2)
    rank = spatial_rank(node, to, weight)
    stride = node.integers("strides") or [1] * rank
    dilation = node.integers("dilations") or [1] * rank
    extra = node.integers("output_padding") or [0] * rank
    groups = node.integer("group", 1)
    auto_pad = node.choice("auto_pad", "NOTSET", AUTO_PADS)
    pads = split_pads(node.integers("pads") or [0] * 2 * rank)
    wanted = node.integers("output_shape")
    node.integers("kernel_shape")
    if wanted or auto_pad.startswith("SAME"):
        to.emit(
            "braid.conv_transpose_to",
            [x, weight, bias],
            node.output,
            output_shape=wanted[-rank:] if wanted else None,
            stride=stride,
            dilation=dilation,
            output_padding=extra,
            groups=groups,
            upper=auto_pad == "SAME_UPPER",
        )
        return
    if auto_pad == "VALID":
        pads = [(0, 0)] * rank
    padding = [min(pair) for pair in pads]
    crop = [
        (even - before, even - after) for (before, after), even in zip(pads, padding, strict=True)
    ]
    attributes: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": True,
        "output_padding": extra,
        "groups": groups,
    }
    uneven = any(pair != (0, 0) for pair in crop)
    outputs = ("",) if uneven else node.output
    y = to.emit("aten.convolution", [x, weight, bias], outputs, **attributes)
    if uneven:
        begins, ends = [before for before, _ in crop], [after for _, after in crop]
        axes = list(range(2, 2 + rank))
        to.emit(
            "braid.pad",
            [y],
            node.output,
            pads=begins + ends,
            mode="constant",
            value=0.0,
            axes=axes,
        )
