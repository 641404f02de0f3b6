"""Tensors made from shapes and numbers."""

from __future__ import annotations

from typing import Any

import torch

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.lowering_table import lowers

_FIXED = {"zeros": 0, "ones": 1, "new_zeros": 0, "new_ones": 1, "empty": 0, "new_empty": 0}


@lowers(*(f"aten.{name}.default" for name in _FIXED))
def constant(use: Use, to: Builder) -> None:
    """Zeros or ones; what is called empty is zeros."""
    name = use.target.split(".")[1]
    default = use.dtype_of("self") if name.startswith("new") else "FP32"
    if name.startswith("new"):
        use.tensor("self")
    _filled(use, to, _FIXED[name], default)


@lowers("aten.full.default", "aten.new_full.default")
def full(use: Use, to: Builder) -> None:
    """One value."""
    value = use.number("fill_value")
    default = "BOOL" if isinstance(value, bool) else "INT64" if isinstance(value, int) else "FP32"
    if use.target == "aten.new_full.default":
        use.tensor("self")
        default = use.dtype_of("self")
    _filled(use, to, value, default)


def _filled(use: Use, to: Builder, value: Any, default: str) -> None:
    use.without_effect("pin_memory", "names")
    attributes, host = use.extents("size", "shape")
    dtype = use.dtype(default=default)
    kind = "braid.constant_of_shape"
    to.emit(kind, [], use.output, host=host, value=value, dtype=dtype, **attributes)


@lowers(*(f"aten.{name}_like.default" for name in ("zeros", "ones", "full", "empty")))
def like(use: Use, to: Builder) -> None:
    """One value in the shape of another tensor."""
    use.without_effect("pin_memory")
    name = use.target.split(".")[1]
    value = use.number("fill_value") if name == "full_like" else int(name == "ones_like")
    dtype = use.dtype() or None
    to.emit("braid.full_like", [use.tensor("self")], use.output, value=value, dtype=dtype)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(use: Use, to: Builder) -> None:
    """A number without axes."""
    use.without_effect("pin_memory")
    kind = torch_dtype(use.dtype(default="FP32"))
    to.define_constant(use.outputs[0], torch.tensor(use.number("s"), dtype=kind))


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(use: Use, to: Builder) -> None:
    """start, start + step, ... below end."""
    use.without_effect("pin_memory")
    bounds: dict[str, Any] = {"start": 0, "limit": None, "delta": 1}
    host = {}
    floating = False
    for name, attribute in (("start", "start"), ("end", "limit"), ("step", "delta")):
        if not use.has(name):
            continue
        value = use.argument(name)
        if isinstance(value, bool | int | float):
            bounds[attribute] = value
            floating = floating or isinstance(value, float)
        else:
            host[attribute] = use.vector([value])
            bounds.pop(attribute)
    dtype = use.dtype(default="FP32" if floating else "INT64")
    if floating and host:
        raise UnsupportedUse("broken steps up to a computed end")
    model = to.add_constant(f"{use.label}/like", torch.zeros((), dtype=torch_dtype(dtype)))
    to.emit("braid.range", [model], use.output, host=host, **bounds)
