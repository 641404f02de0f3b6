"""The lowering table: for each ONNX operator, the function that lowers it and what it covers.

To add an operator, write a function in the file of its family and decorate it:

    @lowers("Relu", 6, 14)
    def relu(node: OnnxNode, to: Builder) -> None:
        to.emit("aten.relu", [node.operand(0)], node.outputs)

    lowers_to("aten.relu", "Relu", 6, 14)  # the same in short

The numbers are the first and last since-version of the operator that the function understands; a
model that uses an older or newer form is refused. So is an attribute, operand or output that the
function does not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from braid.engine.onnx.builder import Builder
from braid.engine.onnx.node import OnnxNode

OLDEST_OPSET = 7
NEWEST_OPSET = 28  # as far as the table has been compared with ONNX's changes

Lower = Callable[[OnnxNode, Builder], None]


@dataclass(frozen=True, slots=True)
class Lowering:
    """Lowering of one operator of the default domain."""

    op_type: str
    lower: Lower
    first: int  # since-versions understood, inclusive
    last: int
    remarks: str = ""


_TABLE: dict[str, Lowering] = {}
TABLE: Mapping[str, Lowering] = MappingProxyType(_TABLE)


def lowers(op_type: str, first: int, last: int, remarks: str = "") -> Callable[[Lower], Lower]:
    def enter(lower: Lower) -> Lower:
        assert op_type not in _TABLE, f"{op_type} is lowered twice"
        _TABLE[op_type] = Lowering(op_type, lower, first, last, remarks)
        return lower

    return enter


CONTRIBUTED_DOMAIN = "com.microsoft"

_CONTRIBUTED: dict[str, Lower] = {}
CONTRIBUTED: Mapping[str, Lower] = MappingProxyType(_CONTRIBUTED)
"""Lowering of operators of ``com.microsoft``, which have one form each."""


def contributed(op_type: str) -> Callable[[Lower], Lower]:
    def enter(lower: Lower) -> Lower:
        assert op_type not in _CONTRIBUTED, f"{op_type} is lowered twice"
        _CONTRIBUTED[op_type] = lower
        return lower

    return enter


def lowers_to(
    kind: str, op_type: str, first: int, last: int, operands: int = 1, **numbers: tuple[str, float]
) -> None:
    """Enter an operator that becomes one operator of ``kind`` with the same operands.

    ``first`` and ``last`` since-versions are included; ``operands`` may not be absent. ``numbers``:
    attribute of the kind -> ONNX attribute and its default, whose type says what is read.
    """

    @lowers(op_type, first, last)
    def one_to_one(node: OnnxNode, to: Builder) -> None:
        given = {name: _number(node, *source) for name, source in numbers.items()}
        values = [node.operand(i) for i in range(operands)]
        to.emit(kind, values, node.output, None, **given)


def _number(node: OnnxNode, attribute: str, default: float) -> float:
    if isinstance(default, bool):
        return node.flag(attribute, default)
    if isinstance(default, int):
        return node.integer(attribute, default)
    return node.real(attribute, default)
