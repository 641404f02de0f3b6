"""Lowering of resizing and sampling."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.document import Symbol
from braid.engine.pt2.lowering_table import lowers

_FORMS = {
    "nearest": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "trilinear": (3,),
    "bicubic": (2,),
}


@lowers(*(f"aten.upsample_{mode}{n}d.vec" for mode, ranks in _FORMS.items() for n in ranks))
def upsample(call: CallArguments, to: Builder) -> None:
    mode = call.target[len("aten.upsample_") : -len("1d.vec")]
    axes = list(range(2, call.rank("input")))
    attributes: dict[str, Any] = {
        "coordinates": "asymmetric",
        "mode": "nearest",
        "rounding": "floor",
    }
    if mode != "nearest":
        corners = call.flag("align_corners")
        half = "half_pixel" if mode == "bicubic" else "pytorch_half_pixel"
        attributes["coordinates"] = "align_corners" if corners else half
        attributes["mode"] = "cubic" if mode == "bicubic" else "linear"
    host = {}
    size, scales = call.argument("output_size"), call.argument("scale_factors")
    if isinstance(scales, list):
        if not all(isinstance(scale, float | int) for scale in scales):
            raise UnsupportedUse("scale factors that are computed")
        attributes["scales"] = [1.0, 1.0, *(float(str(scale)) for scale in scales)]
    elif isinstance(size, list) and any(isinstance(item, Symbol) for item in size):
        host["sizes"] = call.vector(size)
        attributes["axes"] = axes
    elif isinstance(size, list):
        attributes |= {"sizes": size, "axes": axes}
    else:
        raise UnsupportedUse("neither size nor scale")
    to.emit("braid.resize", [call.tensor("input")], call.output, host=host, **attributes)


@lowers("aten.grid_sampler.default")
def grid_sample(call: CallArguments, to: Builder) -> None:
    mode = ("bilinear", "nearest", "bicubic")[call.integer("interpolation_mode")]
    padding = ("zeros", "border", "reflection")[call.integer("padding_mode")]
    to.emit(
        "aten.grid_sample",
        [call.tensor("input"), call.tensor("grid")],
        call.output,
        mode=mode,
        padding=padding,
        align_corners=call.flag("align_corners"),
    )
