"""Lowering of resizing."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import OnnxNode

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
