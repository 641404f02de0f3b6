"""Lowering of pooling, resizing and sampling."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.document import Symbol
from braid.engine.pt2.families.linear import spread
from braid.engine.pt2.lowering_table import lowers


def _window(call: CallArguments, axes: int, dilated: bool) -> dict[str, Any]:
    if call.rank() != axes + 2:
        raise UnsupportedUse("an input without a batch axis")
    kernel = spread(call.integers("kernel_size"), axes)
    stride = call.integers("stride", []) or kernel
    padding = spread(call.integers("padding", [0]), axes)
    return {
        "kernel": kernel,
        "stride": spread(stride, axes),
        "pads": padding + padding,
        "dilation": spread(call.integers("dilation", [1]), axes) if dilated else [1] * axes,
        "ceil_mode": call.flag("ceil_mode"),
    }


@lowers(*(f"aten.max_pool{n}d.default" for n in (1, 2, 3)))
def max_pool(call: CallArguments, to: Builder) -> None:
    axes = int(call.target[len("aten.max_pool")])
    to.emit("braid.max_pool", [call.tensor("self")], call.output, **_window(call, axes, True))


@lowers("aten.max_pool2d_with_indices.default")
def max_pool_with_indices(call: CallArguments, to: Builder) -> None:
    """Largest element of each window; a model that reads its position is refused."""
    to.emit("braid.max_pool", [call.tensor("self")], call.output, **_window(call, 2, True))


@lowers(*(f"aten.avg_pool{n}d.default" for n in (1, 2, 3)))
def avg_pool(call: CallArguments, to: Builder) -> None:
    axes = int(call.target[len("aten.avg_pool")])
    call.require("divisor_override")
    to.emit(
        "braid.avg_pool",
        [call.tensor("self")],
        call.output,
        count_padding=call.flag("count_include_pad", True),
        **_window(call, axes, False),
    )


@lowers(*(f"aten.adaptive_avg_pool{n}d.default" for n in (1, 2, 3)))
def adaptive_avg_pool(call: CallArguments, to: Builder) -> None:
    """Average over a fixed number of windows; over everything if that is one."""
    _adaptive(call, to, "avg")


@lowers(*(f"aten.adaptive_max_pool{n}d.default" for n in (1, 2, 3)))
def adaptive_max_pool(call: CallArguments, to: Builder) -> None:
    """Maximum over a fixed number of windows; over everything if that is one."""
    _adaptive(call, to, "max")


def _adaptive(call: CallArguments, to: Builder, what: str) -> None:
    axes = call.rank() - 2
    size = spread(call.integers("output_size"), int(call.target[-len("1d.default")]))
    if len(size) != axes:
        raise UnsupportedUse("an input without a batch axis")
    if size == [1] * axes:
        to.emit(f"braid.global_{what}_pool", [call.tensor("self")], call.output)
    else:
        to.emit(f"aten.adaptive_{what}_pool", [call.tensor("self")], call.output, size=size)


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
