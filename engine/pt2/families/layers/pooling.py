"""Lowering of pooling."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.families.layers.convolution import spread
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
