"""Lowering of pooling, resizing, sampling of grids, Fourier transforms."""

from typing import Any

from braid.engine.onnx.builder import Builder, UnsupportedUse
from braid.engine.onnx.families.linear import AUTO_PADS, split_pads
from braid.engine.onnx.lowering_table import Maybe, computed_since, lowers, lowers_to
from braid.engine.onnx.node import OnnxNode
from braid.engine.ops.families.linear import is_far

lowers_to("braid.global_avg_pool", "GlobalAveragePool", 1, 22)
lowers_to("braid.global_max_pool", "GlobalMaxPool", 1, 22)
lowers_to(
    *("braid.stft", "STFT", 17, 17, (0, Maybe(2)), {"step": 1, "length": Maybe(3)}),
    remarks="step and length may be computed",
    onesided=("onesided", True),
)


def pooling_window(node: OnnxNode) -> dict[str, Any]:
    kernel = node.integers("kernel_shape")
    if not kernel:
        raise UnsupportedUse("kernel_shape is missing")
    if len(kernel) > 3:
        raise UnsupportedUse(f"pooling over {len(kernel)} axes")
    rank = len(kernel)
    auto_pad = node.choice("auto_pad", "NOTSET", AUTO_PADS)
    pads: list[int] | str = node.integers("pads") or [0] * 2 * rank
    if auto_pad == "VALID":
        pads = [0] * 2 * rank
    elif auto_pad != "NOTSET":
        pads = auto_pad.lower()
    dilation = node.integers("dilations") or [1] * rank
    spans = [((k - 1) * d, 0) for k, d in zip(kernel, dilation, strict=True)]
    reach = spans if isinstance(pads, str) else split_pads(pads)
    if is_far(reach) or min(map(min, reach)) < 0:
        raise UnsupportedUse(f"pads={pads} around windows of {kernel}")
    return {
        "kernel": kernel,
        "stride": node.integers("strides") or [1] * rank,
        "pads": pads,
        "dilation": dilation,
        "ceil_mode": node.flag("ceil_mode"),
    }


@lowers("MaxPool", 1, 22, "1 to 3 axes, without indices")
def max_pool(node: OnnxNode, to: Builder) -> None:
    node.without_effect("storage_order")  # of indices
    to.emit("braid.max_pool", [node.operand(0)], node.output, **pooling_window(node))


@lowers("AveragePool", 7, 22, "1 to 3 axes")
def average_pool(node: OnnxNode, to: Builder) -> None:
    count_padding = node.flag("count_include_pad")
    to.emit(
        "braid.avg_pool",
        [node.operand(0)],
        node.output,
        count_padding=count_padding,
        **pooling_window(node),
    )


_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
    *("asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"),
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_MODES = ("nearest", "linear", "cubic")


@lowers("Upsample", 7, 9)
def upsample(node: OnnxNode, to: Builder) -> None:
    attributes: dict[str, Any] = {"mode": _mode(node, ("nearest", "linear")), "least": 1.0}
    host = {}
    if node.version < 9:
        attributes["scales"] = node.reals("scales")
    else:
        host["scales"] = node.operand(1)
    _sample(node, to, host, attributes | {"coordinates": "asymmetric", "rounding": "floor"})


def _mode(node: OnnxNode, allowed: tuple[str, ...]) -> str:
    return (
        "linear"
        if node.text("mode", "nearest") == "bilinear"
        else node.choice("mode", "nearest", allowed)
    )


def _sample(node: OnnxNode, to: Builder, host: dict[str, str], attributes: dict[str, Any]) -> None:
    to.emit("braid.resize", [node.operand(0)], node.output, host=host, **attributes)


@lowers("Resize", 10, 19, "all modes; scales and sizes may be computed")
def resize(node: OnnxNode, to: Builder) -> None:
    if node.version < 11:
        attributes: dict[str, Any] = {"mode": _mode(node, ("nearest", "linear"))}
        attributes |= {"coordinates": "asymmetric", "rounding": "simple"}
        _sample(node, to, {"scales": node.operand(1)}, attributes)
        return
    coordinates = node.choice("coordinate_transformation_mode", "half_pixel", _COORDINATES)
    attributes = {
        "mode": node.choice("mode", "nearest", _MODES),
        "coordinates": coordinates,
        "rounding": node.choice("nearest_mode", "round_prefer_floor", _ROUNDINGS),
        "cubic": node.real("cubic_coeff_a", -0.75),
        "exclude_outside": node.flag("exclude_outside"),
        "extrapolation": node.real("extrapolation_value", 0.0),
    }
    if node.version >= 18:
        policy = ("stretch", "not_larger", "not_smaller")
        attributes |= {
            "antialias": node.flag("antialias"),
            "axes": node.integers("axes"),
            "policy": node.choice("keep_aspect_ratio_policy", "stretch", policy),
        }
    roi = node.maybe(1)
    host = {"scales": node.maybe(2), "sizes": node.maybe(3)}
    if coordinates == "tf_crop_and_resize":
        host["roi"] = roi
    _sample(node, to, host, attributes)


_GRID_MODES = {"linear": "bilinear", "cubic": "bicubic"}


@lowers("GridSample", 16, 22, "2 and 3 axes (cubic: 2)")
def grid_sample(node: OnnxNode, to: Builder) -> None:
    mode = node.choice("mode", "bilinear", ("linear", "bilinear", "nearest", "cubic", "bicubic"))
    padding = node.choice("padding_mode", "zeros", ("zeros", "border", "reflection"))
    to.emit(
        "aten.grid_sample",
        [node.operand(0), node.operand(1)],
        node.output,
        mode=_GRID_MODES.get(mode, mode),
        padding=padding,
        align_corners=node.flag("align_corners"),
    )


@lowers("Col2Im", 18, 18, "1 and 2 axes")
def col2im(node: OnnxNode, to: Builder) -> None:
    blocks = to.literal(node.operand(2))
    image = to.literal(node.operand(1))
    extents = blocks if blocks is not None else image
    axes = len(extents) if extents is not None else len(node.integers("strides") or [1, 1])
    if axes > 2:
        raise UnsupportedUse(f"{axes} axes")
    to.emit(
        "braid.col2im",
        [node.operand(0)],
        node.output,
        host={"image": node.operand(1), "block": node.operand(2)},
        stride=node.integers("strides") or [1] * axes,
        pads=node.integers("pads") or [0] * 2 * axes,
        dilation=node.integers("dilations") or [1] * axes,
    )


@lowers("DFT", 17, 20, "length and axis may be computed")
def dft(node: OnnxNode, to: Builder) -> None:
    host, attributes = computed_since(node, 20, Maybe(2), axis=("axis", 1))
    attributes |= {"inverse": node.flag("inverse"), "onesided": node.flag("onesided")}
    host["length"] = node.maybe(1)
    to.emit("braid.dft", [node.operand(0)], node.output, host, **attributes)
