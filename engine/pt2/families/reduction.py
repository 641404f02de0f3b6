"""Lowering of reductions, running sums, positions of extremes."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers

_REDUCTIONS = {
    "aten.mean.dim": "aten.mean",
    "aten.mean.default": "aten.mean",
    "aten.sum.dim_IntList": "aten.sum",
    "aten.sum.default": "aten.sum",
    "aten.amax.default": "aten.amax",
    "aten.amin.default": "aten.amin",
    "aten.max.default": "aten.amax",
    "aten.min.default": "aten.amin",
    "aten.logsumexp.default": "aten.logsumexp",
    "aten.prod.dim_int": "braid.prod",
}


def _enter(target: str, kind: str) -> None:
    @lowers(target)
    def reduction(call: CallArguments, to: Builder) -> None:
        x, dtype = call.tensor("self"), call.dtype()
        own = call.dtype_of("self")
        summed = kind in ("aten.sum", "braid.prod")
        if not dtype and summed and own and not torch_dtype(own).is_floating_point:
            dtype = "INT64"  # torch adds integers up in 64 bits
        if dtype and dtype != own:
            x = to.emit("braid.cast", [x], dtype=dtype)
        dims = call.integers("dim", None) or None
        keepdim = call.flag("keepdim")
        to.emit(kind, [x], call.output, dims=dims, keepdim=keepdim)


for _target, _kind in _REDUCTIONS.items():
    _enter(_target, _kind)


@lowers("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim")
def vector_norm(call: CallArguments, to: Builder) -> None:
    """Norm over some axes, of order 1 or 2."""
    order = call.number("ord" if "linalg" in call.target else "p", 2)
    if order not in (1, 2) or call.dtype():
        raise UnsupportedUse(f"norm of order {order}")
    dims, keepdim = call.integers("dim", None) or None, call.flag("keepdim")
    kind = f"braid.l{int(order)}_norm"
    to.emit(kind, [call.tensor("self")], call.output, dims=dims, keepdim=keepdim)


@lowers("aten.argmax.default", "aten.argmin.default")
def arg_extreme(call: CallArguments, to: Builder) -> None:
    kind = "braid." + call.target.split(".")[1]
    x, dim = call.tensor("self"), call.number("dim", None)
    if dim is None:
        if call.flag("keepdim"):
            raise UnsupportedUse("keepdim over all axes")
        x, dim = to.emit("braid.reshape", [x], shape=[-1]), 0
    keepdim = call.flag("keepdim")
    to.emit(kind, [x], call.output, dim=dim, keepdim=keepdim, select_last=False)


@lowers("aten.max.dim", "aten.min.dim")
def extreme_with_position(call: CallArguments, to: Builder) -> None:
    word = call.target.split(".")[1]
    x, dim, keepdim = call.tensor("self"), call.integer("dim"), call.flag("keepdim")
    values, places = (*call.outputs, "")[:2]
    if values:
        to.emit(f"aten.a{word}", [x], [values], dims=[dim], keepdim=keepdim)
    if places:
        kind = f"braid.arg{word}"
        to.emit(kind, [x], [places], dim=dim, keepdim=keepdim, select_last=False)


@lowers("aten.cumsum.default")
def cumsum(call: CallArguments, to: Builder) -> None:
    x, dtype, own = call.tensor("self"), call.dtype(), call.dtype_of("self")
    if not dtype and own and not torch_dtype(own).is_floating_point:
        dtype = "INT64"
    if dtype and dtype != own:
        x = to.emit("braid.cast", [x], dtype=dtype)
    dim = call.integer("dim")
    to.emit("braid.cumsum", [x], call.output, dim=dim, exclusive=False, reverse=False)


@lowers("aten.topk.default")
def topk(call: CallArguments, to: Builder) -> None:
    call.without_effect("sorted")
    to.emit(
        "braid.topk",
        [call.tensor("self")],
        (*call.outputs, "")[:2],
        k=call.integer("k"),
        dim=call.integer("dim", -1),
        largest=call.flag("largest", True),
    )


@lowers("aten.any.dim", "aten.any.default", "aten.all.dim", "aten.all.default")
def truth(call: CallArguments, to: Builder) -> None:
    if call.dtype_of("self") != "BOOL":
        raise UnsupportedUse("of other than booleans")
    kind = "aten.amax" if call.target.startswith("aten.any") else "aten.amin"
    dims, keepdim = call.integers("dim", None), call.flag("keepdim")
    to.emit(kind, [call.tensor("self")], call.output, dims=dims, keepdim=keepdim)
