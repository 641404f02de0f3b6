"""Numbers that the graph computes from shapes, as host values of one element; assertions."""

from __future__ import annotations

import torch

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.pt2.call_arguments import Use
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


def _operand(use: Use, name: str) -> str:
    value = use.argument(name)
    if isinstance(value, Symbol):
        return use.vector([value])
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedUse(f"{name} is not an integer")
    return use.to.add_constant(f"{use.label}/{name}", torch.tensor([value]))


def _enter(target: str, kind: str) -> None:
    @lowers(target)
    def arithmetic(use: Use, to: Builder) -> None:
        to.emit(kind, [_operand(use, "a"), _operand(use, "b")], use.output)


for _target, _kind in _ARITHMETIC.items():
    _enter(_target, _kind)


@lowers("_operator.floordiv")
def floordiv(use: Use, to: Builder) -> None:
    """Division rounded down."""
    a, b = _operand(use, "a"), _operand(use, "b")
    rest = to.emit("aten.remainder", [a, b])
    to.emit("aten.div", [to.emit("aten.sub", [a, rest]), b], use.output, truncate=True)


@lowers("_operator.neg")
def neg(use: Use, to: Builder) -> None:
    """The number with the other sign."""
    to.emit("aten.neg", [_operand(use, "a")], use.output)


@lowers("aten.sym_size.int")
def sym_size(use: Use, to: Builder) -> None:
    """An extent."""
    axis = use.axis("dim", use.rank())
    to.emit("braid.shape", [use.tensor("self")], use.output, start=axis, end=axis + 1)


@lowers("aten.sym_numel.default")
def sym_numel(use: Use, to: Builder) -> None:
    """The number of elements."""
    size = to.emit("braid.size", [use.tensor("self")])
    to.emit("braid.unsqueeze", [size], use.output, axes=[0])
