"""Arithmetic operators of ONNX against ONNX Runtime, over opsets, attributes and shapes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.onnx.operands import Node, Random, case, check, const, ints

RANDOM = Random(0)
real, positive, whole = RANDOM.real, RANDOM.positive, RANDOM.whole

UNARY = (
    *("Abs", "Atan", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "Identity"),
    *("LeakyRelu", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Cosh", "Asinh", "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu", "Celu"),
    *("HardSwish", "Shrink", "Round", "Mish"),
)


@pytest.mark.parametrize("op_type", UNARY)
def test_activations(op_type: str) -> None:
    check(op_type, 18, [3 * real(2, 3, 4)], 1, {})


@pytest.mark.parametrize("op_type", ["Log", "Sqrt", "Acosh"])
def test_functions_of_positive_numbers(op_type: str) -> None:
    check(op_type, 13, [1 + positive(3, 4)], 1, {})


@pytest.mark.parametrize("op_type", ["Acos", "Asin", "Atanh"])
def test_functions_of_small_numbers(op_type: str) -> None:
    check(op_type, 13, [np.tanh(real(3, 4))], 1, {})


@pytest.mark.parametrize("opset", [7, 13, 14])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic_broadcasts(op_type: str, opset: int) -> None:
    check(op_type, opset, [real(2, 1, 4), positive(3, 1)], 1, {})


@pytest.mark.parametrize(
    "node",
    [
        case("Div", 14, ints(-7, 7, -7, 7), ints(2, 2, -2, -2)),
        case("Div", 14, whole(5, dtype=np.int32), np.array([1, 2, 3, -2, 5], np.int32)),
        case("Mod", 13, ints(-7, 7, -7, 7), ints(3, 3, -3, -3)),
        case("Mod", 13, ints(-7, 7, -7, 7), ints(3, 3, -3, -3), fmod=1),
        case("Mod", 13, real(6), positive(6), fmod=1),
        case("Pow", 7, positive(3, 4), positive(4)),
        case("Pow", 15, real(3, 4), const([2.0])),
        case("Pow", 15, positive(3, 4), const(0.5)),
        case("Pow", 15, real(3, 4), const(ints(3))),
        case("Pow", 15, whole(3, 4), const(2.0)),
        case("BitShift", 11, np.array([1, 2, 9], np.uint8), np.array([1, 3, 2], np.uint8),
             direction="LEFT"),
        case("BitShift", 11, np.array([16, 2, 9], np.uint8), np.array([1, 3, 2], np.uint8),
             direction="RIGHT"),
        case("Sum", 8, real(3, 4), real(4), real(3, 1)),
        case("Sum", 13, real(3)),
        case("Mean", 8, real(3, 4), real(4), real(3, 1)),
        case("Max", 8, real(3, 4), real(4), real(3, 1)),
        case("Min", 13, real(3, 4), real(4)),
        case("Max", 13, whole(4), whole(4)),
        case("PRelu", 16, real(2, 3, 4), real(3, 1)),
        case("PRelu", 7, real(2, 3, 4), const(real(1))),
        case("LeakyRelu", 6 + 1, real(9), alpha=0.3),
        case("Elu", 7, real(9), alpha=0.7),
        case("HardSigmoid", 7, 4 * real(20), alpha=0.3, beta=0.4),
        case("HardSigmoid", 7, 4 * real(20), alpha=1 / 6, beta=0.5),
        case("Selu", 7, real(9), alpha=1.1, gamma=2.0),
        case("Celu", 12, real(9), alpha=2.0),
        case("Shrink", 9, real(20), lambd=0.3, bias=0.2),
        case("ThresholdedRelu", 10, real(20), alpha=0.2),
        case("Gelu", 20, real(30)),
        case("Gelu", 20, real(30), approximate="tanh"),
        case("Softplus", 7, np.array([-100, -1, 0, 1, 19, 21, 100], np.float32)),
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
        case("Clip", 13, 3 * real(9), np.array(-0.5, np.float32), np.array(0.5, np.float32)),
        case("Clip", 13, 3 * real(9), np.array(-0.5, np.float32)),
        case("Clip", 13, whole(9), const(ints(-1).reshape(()))),
        case("Cast", 13, 9 * real(9), to=7),
        case("Cast", 13, 9 * real(9), to=6),
        case("Cast", 9, whole(9), to=1),
        case("Cast", 13, whole(9), to=9),
        case("Cast", 13, 9 * real(9), to=11),
        case("Cast", 13, 9 * real(9), to=10),
        case("CastLike", 15, 9 * real(9), ints(1)),
        case("Dropout", 7, real(9), ratio=0.3),
        case("Dropout", 10, real(9), outputs=2),
        case("Dropout", 13, real(9), const(0.3), const(False, bool), outputs=2),
        case("Dropout", 13, real(9), const(0.3)),
        case("Where", 9, real(2, 3) > 0, real(3), real(2, 1)),
        case("Equal", 7, whole(20), whole(20)),
        case("Equal", 13, real(3), real(3)),
        case("Greater", 9, real(3, 4), real(4)),
        case("GreaterOrEqual", 12, whole(9, dtype=np.float32), whole(9, dtype=np.float32)),
        case("Less", 9, real(3, 4), real(4)),
        case("LessOrEqual", 16, whole(9, dtype=np.float32), whole(9, dtype=np.float32)),
        case("And", 7, real(3, 4) > 0, real(4) > 0),
        case("Or", 7, real(3, 4) > 0, real(4) > 0),
        case("Xor", 7, real(3, 4) > 0, real(4) > 0),
        case("Not", 7, real(4) > 0),
        case("IsNaN", 13, np.array([1, np.nan, np.inf], np.float32)),
        case("IsInf", 10, np.array([1, np.nan, np.inf, -np.inf], np.float32)),
        case("IsInf", 10, np.array([1, np.inf, -np.inf], np.float32), detect_negative=0),
        case("IsInf", 10, np.array([1, np.inf, -np.inf], np.float32), detect_positive=0),
    ],
)
def test_bounds_casts_and_logic(node: Node) -> None:
    check(*node)
