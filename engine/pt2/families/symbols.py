"""Lowering of numbers computed from shapes, as host values of one element, and of assertions."""

from __future__ import annotations

import torch

from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.document import Symbol
from braid.engine.pt2.lowering_table import lowers

_ARITHMETIC = {
    "_operator.add": "aten.add",
    "_operator.sub": "aten.sub",
    "_operator.mul": "aten.mul",
    "torch.sym_max": "aten.maximum",
    "torch.sym_min": "aten.minimum",
    **{f"_operator.{name}": f"aten.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "_operator.mod": "aten.remainder",
    "_operator.and_": "aten.logical_and",
}
DROPPED = frozenset(
    {
        *("aten._assert_scalar.default", "aten._assert_async.msg", "aten._assert_async.default"),
        *("aten._assert_tensor_metadata.default", "aten.sym_constrain_range.default"),
        *("aten.sym_constrain_range_for_size.default",),
    }
)
"""Assertions: what they state follows from the shapes, or the comparison finds out."""


def _operand(call: CallArguments, name: str) -> str:
    value = call.argument(name)
    if isinstance(value, Symbol):
        return call.vector([value])
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedUse(f"{name} is not an integer")
    return call.to.add_constant(f"{call.label}/{name}", torch.tensor([value]))


def _enter(target: str, kind: str) -> None:
    @lowers(target)
    def arithmetic(call: CallArguments, to: Builder) -> None:
        to.emit(kind, [_operand(call, "a"), _operand(call, "b")], call.output)


for _target, _kind in _ARITHMETIC.items():
    _enter(_target, _kind)


@lowers("_operator.floordiv")
def floordiv(call: CallArguments, to: Builder) -> None:
    a, b = _operand(call, "a"), _operand(call, "b")
    rest = to.emit("aten.remainder", [a, b])
    to.emit("aten.div", [to.emit("aten.sub", [a, rest]), b], call.output, truncate=True)


@lowers("_operator.neg")
def neg(call: CallArguments, to: Builder) -> None:
    to.emit("aten.neg", [_operand(call, "a")], call.output)


@lowers("aten.sym_size.int")
def sym_size(call: CallArguments, to: Builder) -> None:
    """Extent of one axis of a tensor, [1]."""
    axis = call.axis("dim", call.rank())
    to.emit("braid.shape", [call.tensor("self")], call.output, start=axis, end=axis + 1)


@lowers("aten.sym_numel.default")
def sym_numel(call: CallArguments, to: Builder) -> None:
    """Number of elements of a tensor, [1]."""
    size = to.emit("braid.size", [call.tensor("self")])
    to.emit("braid.unsqueeze", [size], call.output, axes=[0])
