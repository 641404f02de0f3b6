"""Comparisons, boolean arithmetic, selection."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import Node

_BINARY = (
    ("And", 7, 7, "aten.logical_and"),
    ("Equal", 7, 19, "aten.eq"),
    ("Greater", 7, 13, "aten.gt"),
    ("GreaterOrEqual", 12, 16, "aten.ge"),
    ("Less", 7, 13, "aten.lt"),
    ("LessOrEqual", 12, 16, "aten.le"),
    ("Or", 7, 7, "aten.logical_or"),
    ("Xor", 7, 7, "aten.logical_xor"),
)


def _enter_binary(op_type: str, first: int, last: int, kind: str) -> None:
    @lowers(op_type, first, last)
    def binary(node: Node, to: Builder) -> None:
        to.emit(kind, [node.operand(0), node.operand(1)], node.output)


for _entry in _BINARY:
    _enter_binary(*_entry)


@lowers("Not", 1, 1)
def not_(node: Node, to: Builder) -> None:
    """Negation."""
    to.emit("aten.logical_not", [node.operand(0)], node.output)


@lowers("IsNaN", 9, 20)
def is_nan(node: Node, to: Builder) -> None:
    """True where not a number."""
    to.emit("aten.isnan", [node.operand(0)], node.output)


@lowers("IsInf", 10, 20)
def is_inf(node: Node, to: Builder) -> None:
    """True at infinities of the asked signs."""
    negative = node.flag("detect_negative", True)
    positive = node.flag("detect_positive", True)
    to.emit("braid.isinf", [node.operand(0)], node.output, negative=negative, positive=positive)


@lowers("Where", 9, 16)
def where(node: Node, to: Builder) -> None:
    """The second operand where the first is true, else the third."""
    to.emit("aten.where", [node.operand(i) for i in range(3)], node.output)
