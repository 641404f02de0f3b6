"""One ONNX node as a lowering function sees it: every attribute and operand read is remembered.

What is left unread when the function returns is refused: an attribute or operand that the table
does not know is never ignored.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import onnx
from onnx import AttributeProto

from braid.core.errors import ModelImportError
from braid.engine.onnx.builder import UnsupportedUse

T = TypeVar("T")


def shortest(value: float) -> float:
    """The number given to the exporter, as formats in FP64 store it: 0.1, not 0.10000000149."""
    return float(str(np.float32(value)))


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _present(attribute: str, value: T | None) -> T:
    if value is None:
        raise UnsupportedUse(f"attribute {attribute} is missing")
    return value


class OnnxNode:
    """ONNX node; ``inputs`` and ``outputs`` hold value names, ``""`` where absent.

    ``version`` is the opset in which this form of the operator came up (its since-version).
    """

    def __init__(
        self, proto: onnx.NodeProto, name: str, inputs: Sequence[str], version: int
    ) -> None:
        self.op_type = proto.op_type
        self.name = name
        self.version = version
        self.outputs = tuple(proto.output)  # ONNX names: the builder resolves them
        self._inputs = tuple(inputs)
        self._attributes = {attribute.name: attribute for attribute in proto.attribute}
        self._read: set[str] = set()
        self._used: set[int] = set()
        if len(self._attributes) != len(proto.attribute):
            raise ModelImportError(f"node {name!r} ({self.op_type}) has an attribute twice")

    @property
    def output(self) -> tuple[str]:
        """Name of the first output, for ``Builder.emit``."""
        return self.outputs[:1] or ("",)  # type: ignore[return-value]

    @property
    def operands(self) -> int:
        """Number of operands, absent ones in the middle included."""
        return len(self._inputs)

    def maybe(self, index: int) -> str:
        self._used.add(index)
        return self._inputs[index] if index < len(self._inputs) else ""

    def operand(self, index: int) -> str:
        """Value name of operand ``index``; refused if absent."""
        value = self.maybe(index)
        if not value:
            raise UnsupportedUse(f"operand {index} is missing")
        return value

    def all_operands(self) -> list[str]:
        if not self._inputs:
            raise UnsupportedUse("it has no operands")
        return [self.operand(index) for index in range(len(self._inputs))]

    def wants(self, index: int) -> bool:
        return index < len(self.outputs) and bool(self.outputs[index])

    def has(self, attribute: str) -> bool:
        return attribute in self._attributes

    def _get(self, attribute: str, kind: int) -> AttributeProto | None:
        self._read.add(attribute)
        proto = self._attributes.get(attribute)
        if proto is None:
            return None
        if proto.ref_attr_name:
            raise UnsupportedUse(f"attribute {attribute} refers to a function's attribute")
        if proto.type != kind:
            raise UnsupportedUse(f"attribute {attribute} has type {proto.type}, not {kind}")
        return proto

    def integer(self, attribute: str, default: int | None = None) -> int:
        proto = self._get(attribute, AttributeProto.INT)
        return _present(attribute, default if proto is None else int(proto.i))

    def flag(self, attribute: str, default: bool = False) -> bool:
        return bool(self.integer(attribute, int(default)))

    def real(self, attribute: str, default: float | None = None) -> float:
        proto = self._get(attribute, AttributeProto.FLOAT)
        return _present(attribute, default if proto is None else shortest(proto.f))

    def text(self, attribute: str, default: str | None = None) -> str:
        proto = self._get(attribute, AttributeProto.STRING)
        return _present(attribute, default if proto is None else _text(proto.s))

    def choice(self, attribute: str, default: str, allowed: Sequence[str]) -> str:
        """Value of a string attribute; refused if it is none of ``allowed``."""
        value = self.text(attribute, default)
        if value not in allowed:
            raise UnsupportedUse(f"{attribute}={value!r} (known: {', '.join(allowed)})")
        return value

    def integers(self, attribute: str) -> list[int] | None:
        proto = self._get(attribute, AttributeProto.INTS)
        return None if proto is None else [int(value) for value in proto.ints]

    def reals(self, attribute: str) -> list[float] | None:
        proto = self._get(attribute, AttributeProto.FLOATS)
        return None if proto is None else [shortest(value) for value in proto.floats]

    def texts(self, attribute: str) -> list[str] | None:
        proto = self._get(attribute, AttributeProto.STRINGS)
        return None if proto is None else list(map(_text, proto.strings))

    def tensor(self, attribute: str) -> onnx.TensorProto | None:
        proto = self._get(attribute, AttributeProto.TENSOR)
        return None if proto is None else proto.t

    def graph(self, attribute: str) -> onnx.GraphProto:
        return _present(attribute, self._get(attribute, AttributeProto.GRAPH)).g

    def without_effect(self, *attributes: str) -> None:
        """Declare attributes that change nothing at inference."""
        self._read.update(attributes)

    def require(self, attribute: str, value: int) -> None:
        if self.integer(attribute, value) != value:
            raise UnsupportedUse(f"{attribute}={self.integer(attribute)}")

    def unread(self) -> list[str]:
        """Attributes and operands that the lowering function did not read."""
        left = [f"attribute {name}" for name in self._attributes if name not in self._read]
        left += [
            f"operand {index}"
            for index, value in enumerate(self._inputs)
            if value and index not in self._used
        ]
        return left
