"""Operands and cases of the tests of ONNX operators."""

from typing import Any

import numpy as np
import pytest

from tests.engine.onnx.oracle import Array, Const, Operand, assert_agrees, node_model

Node = tuple[str, int, list[Operand], int, dict[str, Any]]
"""Operator and its set, operands, number of outputs, attributes."""


class Random:
    """Operands of one seed; each file has its own, so that they are the same whatever runs."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def real(self, *shape: int, dtype: Any = np.float32) -> Array:
        return self._rng.standard_normal(shape).astype(dtype)

    def positive(self, *shape: int) -> Array:
        return (self._rng.random(shape) + 0.5).astype(np.float32)

    def whole(self, *shape: int, low: int = -5, high: int = 6, dtype: Any = np.int64) -> Array:
        return self._rng.integers(low, high, shape).astype(dtype)

    def quantised(self, *shape: int, dtype: Any = np.uint8) -> Array:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return self._rng.integers(low, high + 1, shape).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def const(array: Any, dtype: Any = np.float32) -> Const:
    return Const(array if isinstance(array, np.ndarray) else np.array(array, dtype))


def shape(*values: int) -> Const:
    return Const(ints(*values))


def case(op_type: str, opset: int, *operands: Operand, **attributes: Any) -> Any:
    outputs = attributes.pop("outputs", 1)
    node: Node = (op_type, opset, list(operands), outputs, attributes)
    return pytest.param(node, id=f"{op_type}-{opset}")


def check(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    assert_agrees(*node_model(op_type, operands, opset, outputs, **attributes))
