"""Pooling."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.families.layers.convolution import spread
from braid.engine.pt2.lowering_table import lowers


def _window(use: Use, axes: int, dilated: bool) -> dict[str, Any]:
    if use.rank() != axes + 2:
        raise UnsupportedUse("an input without a batch axis")
    kernel = spread(use.integers("kernel_size"), axes)
    stride = use.integers("stride", []) or kernel
    padding = spread(use.integers("padding", [0]), axes)
    return {
        "kernel": kernel,
        "stride": spread(stride, axes),
        "pads": padding + padding,
        "dilation": spread(use.integers("dilation", [1]), axes) if dilated else [1] * axes,
        "ceil_mode": use.flag("ceil_mode"),
    }


@lowers(*(f"aten.max_pool{n}d.default" for n in (1, 2, 3)))
def max_pool(use: Use, to: Builder) -> None:
    """Largest element of each window."""
    axes = int(use.target[len("aten.max_pool")])
    to.emit("braid.max_pool", [use.tensor("self")], use.output, **_window(use, axes, True))


@lowers("aten.max_pool2d_with_indices.default")
def max_pool_with_indices(use: Use, to: Builder) -> None:
    """Largest element of each window; where it was is not told."""
    to.emit("braid.max_pool", [use.tensor("self")], use.output, **_window(use, 2, True))


@lowers(*(f"aten.avg_pool{n}d.default" for n in (1, 2, 3)))
def avg_pool(use: Use, to: Builder) -> None:
    """Average of each window."""
    axes = int(use.target[len("aten.avg_pool")])
    use.require("divisor_override")
    to.emit(
        "braid.avg_pool",
        [use.tensor("self")],
        use.output,
        count_padding=use.flag("count_include_pad", True),
        **_window(use, axes, False),
    )


@lowers(*(f"aten.adaptive_avg_pool{n}d.default" for n in (1, 2, 3)))
def adaptive_avg_pool(use: Use, to: Builder) -> None:
    """Average over a fixed number of windows; over everything if that is one."""
    _adaptive(use, to, "avg")


@lowers(*(f"aten.adaptive_max_pool{n}d.default" for n in (1, 2, 3)))
def adaptive_max_pool(use: Use, to: Builder) -> None:
    """Maximum over a fixed number of windows; over everything if that is one."""
    _adaptive(use, to, "max")


def _adaptive(use: Use, to: Builder, what: str) -> None:
    axes = use.rank() - 2
    size = spread(use.integers("output_size"), int(use.target[-len("1d.default")]))
    if len(size) != axes:
        raise UnsupportedUse("an input without a batch axis")
    if size == [1] * axes:
        to.emit(f"braid.global_{what}_pool", [use.tensor("self")], use.output)
    else:
        to.emit(f"aten.adaptive_{what}_pool", [use.tensor("self")], use.output, size=size)
