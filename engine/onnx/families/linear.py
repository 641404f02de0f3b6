"""Lowering of matrix products and convolutions."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from braid.engine.onnx.builder import Builder, UnsupportedUse, emit_matmul, transposed
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import OnnxNode
from braid.engine.ops.families.linear import ConvolutionWindow, halves, is_far


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


_KIND = "aten.convolution"

Pairs = list[tuple[int, int]]  # padding before and after each spatial axis

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def _spatial_rank(node: OnnxNode, to: Builder, weight: str) -> int:
    """Number of spatial axes as far as the node or its weight tells; 0 if they do not."""
    for attribute in ("kernel_shape", "strides", "dilations", "pads", "output_shape"):
        values = node.integers(attribute)
        if values:
            return len(values) // (2 if attribute == "pads" else 1)
    content = to.constant(weight)
    return content.dim() - 2 if content is not None else 0


def split_pads(pads: list[int]) -> Pairs:
    """Return ONNX pads, all begins then all ends, as (before, after) of each axis."""
    half = len(pads) // 2
    if len(pads) % 2:
        raise UnsupportedUse(f"pads={pads}")
    return list(zip(pads[:half], pads[half:], strict=True))


def _pad_spatial(to: Builder, x: str, pads: Pairs, outputs: Sequence[str] = ("",)) -> str:
    return to.emit(
        "braid.pad",
        [x],
        outputs,
        pads=[before for before, _ in pads] + [after for _, after in pads],
        mode="constant",
        value=0.0,
        axes=list(range(2, 2 + len(pads))),
    )


def convolution_window(
    node: OnnxNode, to: Builder, weight: str, *, transposed: bool = False
) -> tuple[ConvolutionWindow, Pairs, str]:
    """The window without padding, the padding (zeros if that is automatic), and ``auto_pad``."""
    rank = _spatial_rank(node, to, weight)
    auto_pad = node.choice("auto_pad", "NOTSET", AUTO_PADS)
    pads = split_pads(node.integers("pads") or [0] * 2 * rank)
    window = ConvolutionWindow(
        stride=node.integers("strides") or [1] * rank,
        padding=[0] * rank,
        dilation=node.integers("dilations") or [1] * rank,
        transposed=transposed,
        output_padding=(transposed and node.integers("output_padding")) or [0] * rank,
        groups=node.integer("group", 1),
    )
    return window, pads if auto_pad == "NOTSET" else [(0, 0)] * rank, auto_pad


@lowers("Conv", 1, 22, "any number of axes; uneven padding becomes an operator of its own")
def conv(node: OnnxNode, to: Builder) -> None:
    operands = node.operand(0), node.operand(1), node.maybe(2)
    lower_convolution(node, to, operands, node.output)


def lower_convolution(
    node: OnnxNode, to: Builder, operands: tuple[str, str, str], outputs: Sequence[str]
) -> str:
    """Convolution with the attributes of a node; ``operands``: x, weight, bias or ""."""
    x, weight, bias = operands
    window, pads, auto_pad = convolution_window(node, to, weight)
    kernel = _kernel(node, to, weight)
    if auto_pad.startswith("SAME"):
        if kernel is None:
            raise UnsupportedUse(f"auto_pad={auto_pad} without a known kernel")
        x, pads = _same_padding(to, x, kernel, window, auto_pad == "SAME_UPPER")
    if is_far(pads):
        raise UnsupportedUse(f"pads={pads}")
    if any(before != after or before < 0 for before, after in pads):
        x, pads = _pad_spatial(to, x, pads), [(0, 0)] * len(pads)
    window = replace(window, padding=[before for before, _ in pads])
    return to.emit(_KIND, [x, weight, bias], outputs, **asdict(window))


def _kernel(node: OnnxNode, to: Builder, weight: str) -> list[int] | None:
    """Extents of the kernel; None if neither the node nor a constant weight tells."""
    kernel = node.integers("kernel_shape")
    content = to.constant(weight)
    if content is None:
        return kernel
    actual = list(content.shape[2:])
    if kernel is not None and kernel != actual:
        raise UnsupportedUse(f"kernel_shape {kernel} of a weight with kernel {actual}")
    return actual


def _same_padding(
    to: Builder, x: str, kernel: list[int], window: ConvolutionWindow, upper: bool
) -> tuple[str, Pairs]:
    """The input of a convolution with SAME padding, and the padding still to be given to it."""
    if all(step == 1 for step in window.stride):  # then the input's shape does not matter
        totals = [(k - 1) * d for k, d in zip(kernel, window.dilation, strict=True)]
        return x, [halves(total, upper) for total in totals]
    stride, dilation = window.stride, window.dilation
    x = to.emit("braid.pad_same", [x], kernel=kernel, stride=stride, dilation=dilation, upper=upper)
    return x, [(0, 0)] * len(kernel)


@lowers("ConvTranspose", 1, 22)
def conv_transpose(node: OnnxNode, to: Builder) -> None:
    """Transposed convolution; uneven padding crops the result."""
    operands = [node.operand(0), node.operand(1), node.maybe(2)]
    window, pads, auto_pad = convolution_window(node, to, operands[1], transposed=True)
    wanted = node.integers("output_shape")
    node.integers("kernel_shape")
    if wanted or auto_pad.startswith("SAME"):
        to.emit(
            "braid.conv_transpose_to",
            operands,
            node.output,
            output_shape=wanted[-len(pads) :] if wanted else None,
            stride=window.stride,
            dilation=window.dilation,
            output_padding=window.output_padding,
            groups=window.groups,
            upper=auto_pad == "SAME_UPPER",
        )
        return
    window = replace(window, padding=[min(pair) for pair in pads])
    crop = [
        (even - before, even - after)
        for (before, after), even in zip(pads, window.padding, strict=True)
    ]
    has_crop = any(pair != (0, 0) for pair in crop)
    y = to.emit(_KIND, operands, ("",) if has_crop else node.output, **asdict(window))
    if has_crop:
        _pad_spatial(to, y, crop, node.output)
