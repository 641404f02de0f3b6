"""Arithmetic of ONNX against ONNX Runtime: what onnx's own tests lack (tests/conformance).

Older operator sets, constant operands, broadcasting, unusual attributes and values.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.onnx.operands import Node, Random, case, check, const, ints

RANDOM = Random(0)
real, positive, whole = RANDOM.real, RANDOM.positive, RANDOM.whole


@pytest.mark.parametrize(
    "node",
    [
        *(case(op_type, 7, real(2, 1, 4), positive(3, 1))
          for op_type in ("Add", "Sub", "Mul", "Div")),
        case("Div", 14, ints(-7, 7, -7, 7), ints(2, 2, -2, -2)),
        case("Mod", 13, ints(-7, 7, -7, 7), ints(3, 3, -3, -3), fmod=1),
        case("Pow", 7, positive(3, 4), positive(4)),
        case("Pow", 15, real(3, 4), const([2.0])),
        case("Pow", 15, positive(3, 4), const(0.5)),
        case("Pow", 15, real(3, 4), const(ints(3))),
        case("Pow", 15, whole(3, 4), const(2.0)),
        *(case(op_type, 8, real(3, 4), real(4), real(3, 1)) for op_type in ("Sum", "Mean", "Max")),
        case("PRelu", 7, real(2, 3, 4), const(real(1))),
        case("HardSigmoid", 7, 4 * real(20), alpha=1 / 6, beta=0.5),
        case("Softplus", 7, np.array([-100, -1, 0, 1, 19, 21, 100], np.float32)),
        case("Acosh", 13, 1 + positive(3, 4)),
        case("Atanh", 13, np.tanh(real(3, 4))),
    ],
)  # fmt: skip
def test_arithmetic(node: Node) -> None:
    check(*node)


@pytest.mark.parametrize(
    "node",
    [
        case("Clip", 7, 3 * real(9), min=-1.0, max=2.0),
        case("Clip", 7, 3 * real(9), max=0.5),
        case("Clip", 7, 3 * real(9)),
        case("Clip", 11, 3 * real(9), const(-1.0), const(2.0)),
        case("Clip", 13, 3 * real(9), None, const(0.0)),
        case("Clip", 13, whole(9), const(ints(-1).reshape(()))),
        *(case("Cast", 13, 9 * real(9), to=to) for to in (6, 7, 10, 11)),
        *(case("Cast", 13, whole(9), to=to) for to in (1, 9)),
        case("Dropout", 7, real(9), ratio=0.3),
        case("Dropout", 10, real(9), outputs=2),
        case("Dropout", 13, real(9), const(0.3), const(False, bool), outputs=2),
        case("Greater", 9, real(3, 4), real(4)),
        case("IsInf", 10, np.array([1, np.inf, -np.inf], np.float32), detect_negative=0),
    ],
)
def test_bounds_casts_and_logic(node: Node) -> None:
    check(*node)
