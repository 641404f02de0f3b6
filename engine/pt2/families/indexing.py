"""Lowering of operators that make tensors, and that pick and place elements by index."""

from __future__ import annotations

from typing import Any

import torch

from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.document import Tensor
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


@lowers("aten.embedding.default")
def embedding(call: CallArguments, to: Builder) -> None:
    call.without_effect("padding_idx", "scale_grad_by_freq", "sparse")
    operands = [call.tensor("weight"), call.tensor("indices")]
    to.emit("braid.gather", operands, call.output, axis=0, wrap=False)


@lowers("aten.index_select.default")
def index_select(call: CallArguments, to: Builder) -> None:
    operands = [call.tensor("self"), call.tensor("index")]
    to.emit("braid.gather", operands, call.output, axis=call.integer("dim"), wrap=False)


@lowers("aten.gather.default")
def gather(call: CallArguments, to: Builder) -> None:
    call.without_effect("sparse_grad")
    operands = [call.tensor("self"), call.tensor("index")]
    axis = call.axis("dim", call.rank())
    shapes = zip(call.shape_of("self"), call.shape_of("index"), strict=True)
    if any(i != axis and a != b for i, (a, b) in enumerate(shapes)):
        raise UnsupportedUse("indices that do not cover the tensor")
    to.emit("braid.gather_elements", operands, call.output, axis=axis, wrap=False)


@lowers("aten.index.Tensor")
def index(call: CallArguments, to: Builder) -> None:
    """Pick slices by one tensor of integer indices."""
    given = call.argument("indices")
    places = (
        [(i, g) for i, g in enumerate(given) if g is not None] if isinstance(given, list) else []
    )
    if len(places) != 1 or not isinstance(places[0][1], Tensor):
        raise UnsupportedUse("indexing with several tensors")
    axis = places[0][0]
    value = call.tensors("indices")[axis]
    if call.dtype_of_name(places[0][1].name) in ("BOOL", "UINT8"):
        raise UnsupportedUse("indexing by a mask: the shape would depend on data")
    to.emit("braid.gather", [call.tensor("self"), value], call.output, axis=axis, wrap=True)
