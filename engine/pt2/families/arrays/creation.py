"""Lowering of operators that make tensors from shapes and numbers."""

from __future__ import annotations

from typing import Any

import torch

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers

_FIXED = {"zeros": 0, "ones": 1, "new_zeros": 0, "new_ones": 1, "empty": 0, "new_empty": 0}


@lowers(*(f"aten.{name}.default" for name in _FIXED))
def constant(call: CallArguments, to: Builder) -> None:
    """Tensor of zeros or ones; an empty one is made of zeros."""
    name = call.target.split(".")[1]
    default = call.dtype_of("self") if name.startswith("new") else "FP32"
    if name.startswith("new"):
        call.tensor("self")
    _filled(call, to, _FIXED[name], default)


@lowers("aten.full.default", "aten.new_full.default")
def full(call: CallArguments, to: Builder) -> None:
    value = call.number("fill_value")
    default = "BOOL" if isinstance(value, bool) else "INT64" if isinstance(value, int) else "FP32"
    if call.target == "aten.new_full.default":
        call.tensor("self")
        default = call.dtype_of("self")
    _filled(call, to, value, default)


def _filled(call: CallArguments, to: Builder, value: Any, default: str) -> None:
    call.without_effect("pin_memory", "names")
    attributes, host = call.extents("size", "shape")
    dtype = call.dtype(default=default)
    kind = "braid.constant_of_shape"
    to.emit(kind, [], call.output, host=host, value=value, dtype=dtype, **attributes)


@lowers(*(f"aten.{name}_like.default" for name in ("zeros", "ones", "full", "empty")))
def like(call: CallArguments, to: Builder) -> None:
    call.without_effect("pin_memory")
    name = call.target.split(".")[1]
    value = call.number("fill_value") if name == "full_like" else int(name == "ones_like")
    dtype = call.dtype() or None
    to.emit("braid.full_like", [call.tensor("self")], call.output, value=value, dtype=dtype)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(call: CallArguments, to: Builder) -> None:
    call.without_effect("pin_memory")
    kind = torch_dtype(call.dtype(default="FP32"))
    to.define_constant(call.outputs[0], torch.tensor(call.number("s"), dtype=kind))


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(call: CallArguments, to: Builder) -> None:
    call.without_effect("pin_memory")
    bounds: dict[str, Any] = {"start": 0, "limit": None, "delta": 1}
    host = {}
    floating = False
    for name, attribute in (("start", "start"), ("end", "limit"), ("step", "delta")):
        if not call.has(name):
            continue
        value = call.argument(name)
        if isinstance(value, bool | int | float):
            bounds[attribute] = value
            floating = floating or isinstance(value, float)
        else:
            host[attribute] = call.vector([value])
            bounds.pop(attribute)
    dtype = call.dtype(default="FP32" if floating else "INT64")
    if floating and host:
        raise UnsupportedUse("broken steps up to a computed end")
    model = to.add_constant(f"{call.label}/like", torch.zeros((), dtype=torch_dtype(dtype)))
    to.emit("braid.range", [model], call.output, host=host, **bounds)
