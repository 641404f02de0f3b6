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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

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


class Maybe(int):
    """Place of an operand that may be absent."""


def lowers_to(
    kind: str,
    op_type: str,
    first: int,
    last: int,
    operands: int | tuple[int, ...] | None = 1,
    host: Mapping[str, int] = MappingProxyType({}),
    ignored: tuple[str, ...] = (),
    remarks: str = "",
    **attributes: Any,
) -> None:
    """Enter an operator that becomes one operator of ``kind``.

    Args:
        kind: of the one operator.
        op_type: in ONNX; its since-versions ``first`` and ``last`` are included.
        operands: places of the operands, or how many there are; None: all of them.
        host: attribute of the kind -> place of the operand whose content becomes it.
        ignored: ONNX attributes without effect.
        remarks: for people, on what is covered.
        attributes: attribute of the kind -> its value, or (ONNX attribute, source) as ``_read``.
    """
    places = range(operands) if isinstance(operands, int) else operands

    @lowers(op_type, first, last, remarks)
    def one_to_one(node: OnnxNode, to: Builder) -> None:
        values = node.all_operands() if places is None else [_place(node, i) for i in places]
        contents = {name: _place(node, place) for name, place in host.items()}
        node.without_effect(*ignored)
        to.emit(kind, values, node.output, contents, **given(node, attributes))


def _place(node: OnnxNode, place: int) -> str:
    return node.maybe(place) if isinstance(place, Maybe) else node.operand(place)


def given(node: OnnxNode, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a kind, of which tuples say what is read of a node."""
    return {
        name: _read(node, *source) if isinstance(source, tuple) else source
        for name, source in attributes.items()
    }


def computed_since(
    node: OnnxNode, version: int, place: int, **attributes: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """What forms before ``version`` have as attributes, read as by ``given``, newer as an operand.

    Returns the value at ``place`` whose content becomes the attributes, and those that are there.
    """
    if node.version < version:
        read = given(node, attributes)
        return {}, {name: value for name, value in read.items() if value is not None}
    return dict.fromkeys(attributes, _place(node, place)), {}


def _read(node: OnnxNode, attribute: str, source: Any) -> Any:
    """An attribute of a node by its default, whose type says what is read.

    None: an integer, or None. A list: integers, or None. A tuple: one of these texts, by default
    the first. A function: what it makes of an integer, which must be there.
    """
    match source:
        case None:
            return node.integer(attribute) if node.has(attribute) else None
        case bool():
            return node.flag(attribute, source)
        case int():
            return node.integer(attribute, source)
        case float():
            return node.real(attribute, source)
        case list():
            return node.integers(attribute)
        case tuple():
            return node.choice(attribute, source[0], source)
    return source(node.integer(attribute))
