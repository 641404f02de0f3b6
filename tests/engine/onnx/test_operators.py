"""Every operator of the table against ONNX Runtime, over opsets, attributes and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.onnx.oracle import Array, Const, Operand, assert_agrees, node_model

rng = np.random.default_rng(0)


def real(*shape: int, dtype: Any = np.float32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def positive(*shape: int) -> Array:
    return (rng.random(shape) + 0.5).astype(np.float32)


def whole(*shape: int, low: int = -5, high: int = 6, dtype: Any = np.int64) -> Array:
    return rng.integers(low, high, shape).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def const(array: Any, dtype: Any = np.float32) -> Const:
    return Const(array if isinstance(array, np.ndarray) else np.array(array, dtype))


def shape(*values: int) -> Const:
    return Const(ints(*values))


Case = tuple[str, int, list[Operand], dict[str, Any]]


def case(op_type: str, opset: int, *operands: Operand, **attributes: Any) -> Any:
    outputs = attributes.pop("outputs", 1)
    return pytest.param(
        op_type, opset, list(operands), outputs, attributes, id=f"{op_type}-{opset}"
    )


def check(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    assert_agrees(*node_model(op_type, operands, opset, outputs, **attributes))


ARGUMENTS = ("op_type", "opset", "operands", "outputs", "attributes")

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
    ARGUMENTS,
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
def test_arithmetic(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


@pytest.mark.parametrize(
    ARGUMENTS,
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
def test_bounds_casts_and_logic(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


IMAGE, SIGNAL, VOLUME = real(2, 4, 9, 10), real(2, 4, 13), real(1, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("Conv", 7, IMAGE, const(real(6, 4, 3, 3))),
        case("Conv", 11, IMAGE, const(real(6, 4, 3, 3)), const(real(6)), pads=[1, 1, 1, 1]),
        case("Conv", 11, IMAGE, real(6, 4, 3, 3), real(6), strides=[2, 1]),
        case("Conv", 11, IMAGE, real(6, 4, 3, 3)),
        case("Conv", 11, IMAGE, const(real(6, 4, 3, 2)), pads=[0, 1, 2, 3], strides=[2, 2]),
        case("Conv", 11, IMAGE, const(real(6, 4, 3, 3)), dilations=[2, 3], pads=[2, 2, 2, 2]),
        case("Conv", 11, IMAGE, const(real(6, 2, 3, 3)), group=2),
        case("Conv", 11, IMAGE, const(real(4, 1, 3, 3)), group=4, kernel_shape=[3, 3]),
        case("Conv", 11, IMAGE, const(real(6, 4, 1, 5)), pads=[0, 2, 0, 2]),
        case("Conv", 11, SIGNAL, const(real(6, 4, 3)), pads=[1, 1], strides=[2]),
        case("Conv", 11, VOLUME, const(real(3, 4, 2, 3, 3)), strides=[1, 2, 2]),
        *(
            case("Conv", 11, IMAGE, const(real(6, 4, k, k)), auto_pad=mode, strides=[s, s])
            for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
            for k, s in ((3, 1), (2, 1), (3, 2), (2, 3), (5, 2))
        ),
        case("ConvTranspose", 7, IMAGE, const(real(4, 3, 2, 2)), strides=[2, 2]),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 3, 3)), const(real(3)),
             strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 3, 3)), pads=[0, 1, 2, 1]),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 4, 3)), strides=[3, 2],
             output_shape=[26, 20]),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 4, 3)), strides=[3, 2],
             output_shape=[27, 19], auto_pad="SAME_UPPER"),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 3, 3)), const(real(3)), strides=[2, 2],
             auto_pad="SAME_UPPER"),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 4, 3)), strides=[2, 2],
             auto_pad="SAME_LOWER"),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 2, 2)), const(real(3)), strides=[3, 3],
             auto_pad="SAME_UPPER"),
        case("ConvTranspose", 11, IMAGE, const(real(4, 3, 2, 2)), const(real(3)), strides=[3, 3],
             output_shape=[28, 29]),
        case("ConvTranspose", 11, IMAGE, const(real(4, 2, 3, 3)), group=2, dilations=[2, 1]),
        case("ConvTranspose", 11, SIGNAL, const(real(4, 3, 4)), strides=[2], pads=[1, 1]),
        case("ConvTranspose", 11, VOLUME, real(4, 2, 2, 2, 2)),
    ],
)  # fmt: skip
def test_convolutions(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [0, 1, 2, 1]},
        {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 0, 2, 2]},
        {"kernel_shape": [2, 2], "strides": [3, 3]},
    ],
)
def test_pooling_windows(op_type: str, window: dict[str, Any], ceil_mode: int) -> None:
    check(op_type, 12, [IMAGE], 1, {**window, "ceil_mode": ceil_mode})


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        *(
            case(op_type, 12, IMAGE, kernel_shape=[k, k], strides=[s, s], auto_pad=mode)
            for op_type in ("MaxPool", "AveragePool")
            for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
            for k, s in ((2, 1), (3, 2), (4, 3))
        ),
        case("MaxPool", 8, SIGNAL, kernel_shape=[3], strides=[2]),
        case("MaxPool", 12, VOLUME, kernel_shape=[2, 2, 3], strides=[2, 1, 2]),
        case("MaxPool", 12, IMAGE, kernel_shape=[3, 3], dilations=[2, 2]),
        case("MaxPool", 12, IMAGE, kernel_shape=[2, 2], strides=[2, 2], outputs=2),
        case("MaxPool", 12, IMAGE, kernel_shape=[3, 2], pads=[1, 0, 1, 1], outputs=2),
        case("MaxPool", 12, IMAGE, kernel_shape=[2, 2], storage_order=1, outputs=2),
        case("MaxPool", 12, whole(1, 2, 6, 6, low=0, high=255, dtype=np.uint8),
             kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        case("AveragePool", 7, SIGNAL, kernel_shape=[3], strides=[2], pads=[1, 1]),
        case("AveragePool", 11, VOLUME, kernel_shape=[2, 2, 3], strides=[2, 1, 2]),
        case("AveragePool", 11, IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1],
             count_include_pad=1),
        case("AveragePool", 11, IMAGE, kernel_shape=[3, 3], pads=[1, 0, 2, 1], strides=[2, 2],
             count_include_pad=1),
        case("AveragePool", 19, IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
             count_include_pad=1, ceil_mode=1),
        case("AveragePool", 19, IMAGE, kernel_shape=[2, 3], dilations=[2, 2]),
        case("LpPool", 11, IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], p=3),
        case("LpPool", 18, SIGNAL, kernel_shape=[2], ceil_mode=1, strides=[2]),
        case("GlobalAveragePool", 7, IMAGE),
        case("GlobalAveragePool", 7, VOLUME),
        case("GlobalMaxPool", 7, IMAGE),
        case("GlobalLpPool", 7, IMAGE, p=3),
    ],
)  # fmt: skip
def test_pooling(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


CHANNELS = [const(positive(4)), const(real(4)), const(real(4)), const(positive(4))]


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("BatchNormalization", 7, IMAGE, *CHANNELS),
        case("BatchNormalization", 9, IMAGE, *CHANNELS, epsilon=0.01, momentum=0.5),
        case("BatchNormalization", 15, SIGNAL, *CHANNELS),
        case("BatchNormalization", 15, real(3, 4), *CHANNELS),
        case("BatchNormalization", 15, VOLUME, positive(4), real(4), real(4), positive(4)),
        case("LayerNormalization", 17, real(2, 3, 8), const(real(8)), const(real(8))),
        case("LayerNormalization", 17, real(2, 3, 8), const(real(3, 8)), axis=1, epsilon=0.1),
        case("LayerNormalization", 17, real(2, 3, 8), real(8), real(8), outputs=3),
        case("InstanceNormalization", 7, IMAGE, const(real(4)), const(real(4))),
        case("InstanceNormalization", 7, SIGNAL, const(real(4)), const(real(4)), epsilon=0.1),
        case("GroupNormalization", 21, IMAGE, const(real(4)), const(real(4)), num_groups=2),
        case("LRN", 7, IMAGE, size=3),
        case("LRN", 13, IMAGE, size=5, alpha=0.3, beta=0.5, bias=2.0),
        case("LpNormalization", 7, IMAGE, axis=1),
        case("LpNormalization", 7, IMAGE, axis=-1, p=1),
        case("MeanVarianceNormalization", 13, IMAGE),
        case("MeanVarianceNormalization", 13, IMAGE, axes=[1, 2]),
        *(
            case(op_type, opset, real(2, 3, 4), **axis)
            for op_type in ("Softmax", "LogSoftmax", "Hardmax")
            for opset in (7, 11, 13)
            for axis in ({}, {"axis": 0}, {"axis": 1}, {"axis": 2})
        ),
        case("Softmax", 11, real(2, 3, 4), axis=-1),
        case("Softmax", 11, real(2, 3, 4), axis=-2),
        case("Softmax", 13, real(2, 3, 4), axis=-2),
    ],
)
def test_normalisations(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("MatMul", 9, real(2, 3, 4), const(real(4, 5))),
        case("MatMul", 13, real(2, 3, 4), real(4, 5)),
        case("MatMul", 13, real(2, 1, 3, 4), real(5, 4, 2)),
        case("MatMul", 13, real(4), const(real(4, 5))),
        case("MatMul", 13, const(real(3, 4)), real(4, 5)),
        case("MatMul", 13, real(3, 4), real(4)),
        *(
            case("Gemm", opset, a, weight, *c, transA=ta, transB=tb, alpha=alpha, beta=beta)
            for opset in (7, 13)
            for a, ta in ((real(3, 4), 0), (real(4, 3), 1))
            for weight, tb in ((const(real(4, 5)), 0), (real(5, 4), 1))
            for c in ([const(real(5))], [real(3, 1)], [const(real(1, 5))])
            for alpha, beta in ((1.0, 1.0), (0.5, 0.3))
        ),
        case("Gemm", 13, real(3, 4), const(real(4, 5))),
        case("Gemm", 13, real(3, 4), const(real(4, 5)), const(2.0)),
        case("Gemm", 13, positive(1, 4), const(positive(4, 1)), const(real(1, 1))),
        case("Gemm", 13, real(3, 4), const(real(4, 3)), const(real(3, 1))),
        case("Einsum", 12, real(2, 3, 4), real(4, 5), equation="bij,jk->bik"),
        case("Einsum", 12, real(3, 3), equation="ii -> i"),
        case("Det", 11, real(2, 3, 3)),
    ],
)
def test_products(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("Reshape", 7, real(2, 3, 4), shape(0, -1)),
        case("Reshape", 13, real(2, 3, 4), shape(4, 0, 2)),
        case("Reshape", 14, real(2, 3, 4), ints(6, 4)),
        case("Reshape", 14, real(0, 3), shape(3, 0), allowzero=1),
        case("Flatten", 9, real(2, 3, 4)),
        case("Flatten", 13, real(2, 3, 4), axis=0),
        case("Flatten", 13, real(2, 3, 4), axis=-1),
        case("Flatten", 13, real(2, 3, 4), axis=3),
        case("Transpose", 7, real(2, 3, 4)),
        case("Transpose", 13, real(2, 3, 4), perm=[1, 2, 0]),
        case("Squeeze", 7, real(1, 3, 1), axes=[0]),
        case("Squeeze", 11, real(1, 3, 1), axes=[-1]),
        case("Squeeze", 11, real(1, 3, 1)),
        case("Squeeze", 13, real(1, 3, 1), shape(0, 2)),
        case("Squeeze", 13, real(1, 3, 1), ints(2)),
        case("Unsqueeze", 7, real(3, 4), axes=[0, 3]),
        case("Unsqueeze", 13, real(3, 4), shape(-1, 0)),
        case("Unsqueeze", 13, real(3, 4), ints(1)),
        case("Concat", 7, real(2, 3), real(2, 1), real(2, 2), axis=1),
        case("Concat", 13, real(2, 3), real(1, 3), axis=-2),
        case("Split", 7, real(6, 4), outputs=2),
        case("Split", 11, real(6, 4), axis=1, split=[1, 3], outputs=2),
        case("Split", 13, real(6, 4), shape(1, 2, 3), outputs=3),
        case("Split", 13, real(6, 4), ints(4, 2), outputs=2),
        case("Split", 18, real(7, 4), num_outputs=3, outputs=3),
        case("Slice", 9, real(5, 6), starts=[1, -4], ends=[3, 100], axes=[0, 1]),
        case("Slice", 9, real(5, 6), starts=[1], ends=[-1]),
        case("Slice", 10, real(5, 6), shape(1), shape(4), shape(1), shape(2)),
        case("Slice", 13, real(5, 6), shape(-1), shape(-100), shape(0), shape(-1)),
        case("Slice", 13, real(5, 6), shape(-2), shape(-(2**62)), shape(1), shape(-3)),
        case("Slice", 13, real(5, 6), shape(4), shape(0), shape(1), shape(-2)),
        case("Slice", 13, real(5, 6), shape(3), shape(2**63 - 1), shape(-1)),
        case("Slice", 13, real(5, 6), shape(4, 0), shape(2, 3)),
        case("Slice", 13, real(5, 6), shape(1), shape(3), shape(0), shape(-1)),
        case("Slice", 13, real(5, 6), shape(9), shape(3), shape(1), shape(1)),
        case("Slice", 13, real(5, 6), shape(-100), shape(-100), shape(0), shape(-2)),
        case("Slice", 13, real(0, 6), shape(-1), shape(-100), shape(0), shape(-1)),
        case("Slice", 13, real(5, 6), ints(1), ints(3)),
        case("Expand", 8, real(3, 1), shape(2, 1, 4)),
        case("Expand", 13, real(3, 1), ints(3, 2)),
        case("Tile", 7, real(2, 3), shape(2, 1)),
        case("Tile", 13, real(2, 3), ints(1, 3)),
        case("Pad", 7, real(3, 4), pads=[1, 0, 2, 3], value=0.5),
        case("Pad", 7, real(3, 4), pads=[1, 0, 2, 3], mode="reflect"),
        case("Pad", 10, real(3, 4), pads=[1, 5, 0, 2], mode="edge"),
        case("Pad", 11, real(3, 4), shape(1, 0, -1, 2), const(2.0)),
        case("Pad", 13, real(3, 4), ints(1, 0, 0, 2)),
        case("Pad", 18, real(3, 4, 5), shape(1, 2, 0, 1), None, shape(2, 0)),
        case("Pad", 19, real(3, 4), shape(1, 2, 2, 3), mode="wrap"),
        case("Pad", 13, whole(3, 4), shape(1, 1, 1, 1), const(ints(7).reshape(()))),
        case("DepthToSpace", 7, real(2, 8, 3, 4), blocksize=2),
        case("DepthToSpace", 13, real(2, 8, 3, 4), blocksize=2, mode="CRD"),
        case("SpaceToDepth", 13, real(2, 3, 4, 6), blocksize=2),
        case("Trilu", 14, real(2, 4, 5)),
        case("Trilu", 14, real(4, 5), const(ints(-1).reshape(())), upper=0),
        case("ReverseSequence", 10, real(4, 3, 2), ints(1, 4, 2)),
        case("ReverseSequence", 10, real(3, 4, 2), ints(1, 4, 2), batch_axis=0, time_axis=1),
        case("Identity", 13, real(3)),
        case("Shape", 13, real(3, 4)),
        case("Shape", 15, real(3, 4, 5), start=1),
        case("Shape", 15, real(3, 4, 5), start=-3, end=-1),
        case("Size", 13, real(3, 4)),
        case("ConstantOfShape", 9, ints(2, 3)),
        case("Range", 11, np.array(1, np.int64), np.array(10, np.int64), np.array(3, np.int64)),
        case("Range", 11, const(1.0), const(0.0), const(-0.3)),
        case("EyeLike", 9, real(3, 4), k=1),
        case("EyeLike", 9, whole(3, 4), dtype=1),
    ],
)
def test_shapes(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("opset", "axes"), [(11, [1]), (11, [0, -1]), (11, None), (18, [0, 2])])
@pytest.mark.parametrize(
    "op_type",
    [
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    ],
)
def test_reductions(op_type: str, opset: int, axes: list[int] | None, keepdims: int) -> None:
    operands: list[Operand] = [positive(2, 3, 4)]
    attributes: dict[str, Any] = {"keepdims": keepdims}
    if axes and opset >= 18:
        operands.append(shape(*axes))
    elif axes:
        attributes["axes"] = axes
    check(op_type, opset, operands, 1, attributes)


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("ReduceSum", 13, real(2, 3), ints(1)),
        case("ReduceSum", 13, real(2, 3), shape(), noop_with_empty_axes=1),
        case("ReduceSum", 13, real(2, 3), None, noop_with_empty_axes=1),
        case("ReduceSum", 13, real(2, 3), shape()),
        case("ReduceMean", 18, whole(3, 4, dtype=np.int32), shape(1)),
        case("ReduceMax", 13, whole(3, 4), axes=[0]),
        case("ReduceSum", 13, real(2, 0, 3), shape(1)),
        case("ArgMax", 7, real(3, 4)),
        case("ArgMax", 13, real(3, 4), axis=-1, keepdims=0),
        case("ArgMax", 13, whole(3, 9, dtype=np.float32), axis=1, select_last_index=1),
        case("ArgMin", 13, whole(3, 9, dtype=np.float32), axis=1, select_last_index=1),
        case("ArgMin", 13, whole(3, 9, dtype=np.float32), axis=1),
        case("CumSum", 11, real(3, 4), const(ints(1).reshape(()))),
        case("CumSum", 14, real(3, 4), const(ints(0).reshape(())), exclusive=1, reverse=1),
        case("TopK", 7, real(3, 9), k=2, outputs=2),
        case("TopK", 10, real(3, 9), shape(3), axis=0, outputs=2),
        case("TopK", 11, whole(3, 9), shape(4), largest=0, outputs=2),
        case("TopK", 11, real(3, 9), ints(2), outputs=2),
        case("Gather", 7, real(4, 5), const(ints(0, 2))),
        case("Gather", 11, real(4, 5), const(ints(-1, 2, -4)), axis=1),
        case("Gather", 13, real(4, 5), whole(2, 3, low=-4, high=4)),
        case("Gather", 13, real(4, 5), const(ints(-2).reshape(())), axis=1),
        case("Gather", 13, real(4, 5, 3), np.array(1, np.int64), axis=1),
        case("Gather", 13, real(4, 5), const(np.array([[1, 2]], np.int32)), axis=-1),
        case("GatherElements", 11, real(4, 5), whole(4, 2, low=-5, high=5), axis=1),
        case("GatherND", 11, real(3, 4, 5), whole(2, 2, low=-3, high=3)),
        case("GatherND", 13, real(3, 4, 5), whole(3, 2, 1, low=0, high=4), batch_dims=1),
        case("ScatterElements", 11, real(3, 5), ints(0, -1, 2).reshape(1, 3), real(1, 3)),
        case("ScatterElements", 16, real(3, 5), ints(1, 1, 2).reshape(1, 3), real(1, 3), axis=1,
             reduction="add"),
        case("ScatterElements", 18, real(3, 5), ints(1, 1, 2).reshape(1, 3), real(1, 3), axis=1,
             reduction="max"),
        case("ScatterND", 11, real(4, 5), ints(0, -1).reshape(2, 1), real(2, 5)),
        case("ScatterND", 16, real(4, 5), ints(0, 0).reshape(2, 1), real(2, 5), reduction="add"),
        case("ScatterND", 18, real(4, 5), ints(1, 2, 3, 4).reshape(2, 2), real(2),
             reduction="min"),
        case("OneHot", 9, whole(2, 3, low=-4, high=5), shape(4), const(ints(2, 5))),
        case("OneHot", 11, whole(3, low=0, high=4), ints(4), real(2), axis=0),
        case("Compress", 11, real(3, 4), const(np.array([True, False, True])), axis=0),
        case("Compress", 11, real(3, 4), const(np.array([False, True, True]))),
        case("NonZero", 13, const(whole(3, 4, low=0, high=2))),
    ],
)  # fmt: skip
def test_reducing_and_indexing(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


COORDINATES = (
    *("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
    "tf_half_pixel_for_nn",
)
SCALES = ([1, 1, 2, 2], [1, 1, 0.6, 1.7], [1, 1, 1, 3])


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("coordinates", [c for c in COORDINATES if not c.startswith("tf")])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_smooth_resize(mode: str, coordinates: str, scales: list[float]) -> None:
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    model = node_model("Resize", [real(2, 3, 6, 7), None, const(scales)], 13, **attributes)

    assert_agrees(*model, tolerance=1e-4)


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_resize(rounding: str, coordinates: str, scales: list[float]) -> None:
    attributes: dict[str, Any] = {"nearest_mode": rounding}
    attributes["coordinate_transformation_mode"] = coordinates
    operands = [real(2, 3, 6, 7), None, const(scales)]

    assert_agrees(*node_model("Resize", operands, 13, mode="nearest", **attributes))


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 3.0]),
        case("Upsample", 9, IMAGE, const([1, 1, 1.5, 2])),
        case("Upsample", 9, IMAGE, const([1, 1, 2, 2]), mode="linear"),
        case("Resize", 10, IMAGE, const([1, 1, 2, 2])),
        case("Resize", 10, IMAGE, const([1, 1, 0.6, 0.4])),
        case("Resize", 10, IMAGE, const([1, 1, 2, 2]), mode="linear"),
        case("Resize", 11, IMAGE, const([]), const([]), shape(2, 4, 20, 5), mode="linear"),
        case("Resize", 13, IMAGE, None, None, shape(2, 4, 20, 15)),
        case("Resize", 13, IMAGE, None, np.array([1, 1, 2, 0.5], np.float32)),
        case("Resize", 13, IMAGE, None, const([1, 1, 0.5, 0.7]), mode="cubic",
             exclude_outside=1, cubic_coeff_a=-0.5),
        case("Resize", 18, IMAGE, None, const([2, 0.5]), axes=[2, 3], mode="linear"),
        case("Resize", 18, IMAGE, None, None, shape(5, 6), axes=[2, 3],
             keep_aspect_ratio_policy="not_larger"),
        case("Resize", 18, IMAGE, None, const([1, 1, 0.6, 0.4]), mode="linear", antialias=1),
        case("Resize", 18, IMAGE, None, const([1, 1, 0.6, 0.4]), mode="cubic", antialias=1),
        case("Resize", 13, IMAGE, const([0, 0, 0.2, 0.1, 1, 1, 0.8, 1.2]), None,
             shape(2, 4, 5, 5), mode="linear", extrapolation_value=9.0,
             coordinate_transformation_mode="tf_crop_and_resize"),
        case("Resize", 13, SIGNAL, None, const([1, 1, 2.5]), mode="linear"),
        case("Resize", 13, real(2, 4, 7, 4), None, None, shape(2, 4, 8, 7),
             coordinate_transformation_mode="asymmetric", nearest_mode="round_prefer_ceil"),
    ],
)  # fmt: skip
def test_resize(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


def recurrent(gates: int, directions: int, bias: bool, lengths: bool, state: int) -> list[Operand]:
    """Operands of a recurrent layer over 5 steps, batch 3, 4 features, 6 hidden units."""
    operands: list[Operand] = [
        real(5, 3, 4),
        const(real(directions, gates * 6, 4)),
        const(real(directions, gates * 6, 6)),
        const(real(directions, 2 * gates * 6)) if bias else None,
        np.array([5, 2, 3], np.int32) if lengths else None,
    ]
    operands += [real(directions, 3, 6) for _ in range(min(state, 2))]
    return [*operands, const(real(directions, 18))] if state == 3 else operands  # peepholes


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op_type", "gates", "state", "extra"),
    [
        ("LSTM", 4, 2, {}),
        ("LSTM", 4, 0, {}),
        ("GRU", 3, 1, {"linear_before_reset": 1}),
        ("GRU", 3, 0, {"linear_before_reset": 1}),
        ("RNN", 1, 1, {}),
        ("GRU", 3, 1, {}),
        ("GRU", 3, 0, {"clip": 0.5}),
        ("LSTM", 4, 2, {"clip": 0.3}),
        ("LSTM", 4, 2, {"input_forget": 1}),
        ("LSTM", 4, 3, {}),
        ("RNN", 1, 0, {"activations": ["Relu"]}),
        ("RNN", 1, 0, {"activations": ["HardSigmoid"], "activation_alpha": [0.3]}),
        (
            "LSTM",
            4,
            2,
            {
                "activations": ["HardSigmoid", "Softsign", "Affine"],
                "activation_alpha": [0.1, 0.7],
                "activation_beta": [0.4, 0.2],
            },
        ),
    ],
)
def test_recurrent_layers(
    op_type: str, gates: int, state: int, extra: dict[str, Any], direction: str, lengths: bool
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    operands = recurrent(gates, directions, bias=state > 0, lengths=lengths, state=state)
    attributes = {"hidden_size": 6, "direction": direction, **extra}
    for key in ("activations", "activation_alpha", "activation_beta"):
        if key in attributes:
            attributes[key] = attributes[key] * directions

    assert_agrees(*node_model(op_type, operands, 14, 3 if op_type == "LSTM" else 2, **attributes))


def quantised(*shape: int, dtype: Any = np.uint8) -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.integers(low, high + 1, shape).astype(dtype)


ZERO, SIGNED_ZERO = const(120, np.uint8), const(-3, np.int8)


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("QuantizeLinear", 10, 3 * real(3, 4), const(0.05), ZERO),
        case("QuantizeLinear", 13, 3 * real(2, 3, 4), const(positive(3)), const([1, 2, 3], np.int8),
             axis=1),
        case("QuantizeLinear", 19, 3 * real(3, 4), const(0.05)),
        case("QuantizeLinear", 21, 3 * real(4, 6), const(positive(2, 6)), axis=0, block_size=2,
             output_dtype=5),
        case("DequantizeLinear", 10, quantised(3, 4), const(0.05), ZERO),
        case("DequantizeLinear", 13, quantised(2, 3, 4, dtype=np.int8), const(positive(3)),
             const([1, -2, 3], np.int8), axis=1),
        case("DequantizeLinear", 13, whole(3, 4, dtype=np.int32), const(0.1)),
        case("DequantizeLinear", 21, quantised(4, 6, dtype=np.int8), const(positive(2, 6)),
             axis=0, block_size=2),
        case("DynamicQuantizeLinear", 11, real(3, 4), outputs=3),
        case("MatMulInteger", 10, quantised(3, 4), quantised(4, 5, dtype=np.int8), ZERO,
             SIGNED_ZERO),
        case("QLinearMatMul", 10, quantised(3, 400), const(0.02), ZERO, const(quantised(400, 5)),
             const(0.03), ZERO, const(0.5), ZERO),
        case("ConvInteger", 10, quantised(1, 3, 6, 7), const(quantised(4, 3, 3, 3)), ZERO,
             pads=[1, 1, 1, 1]),
        case("QLinearConv", 10, quantised(1, 3, 6, 7), const(0.02), ZERO,
             const(quantised(4, 3, 3, 3, dtype=np.int8)), const(positive(4) / np.float32(50)),
             const(np.zeros(4, np.int8)), const(0.3), ZERO, const(whole(4, dtype=np.int32)),
             pads=[1, 1, 1, 1], strides=[2, 1]),
    ],
)  # fmt: skip
def test_quantised_integers(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_samples(mode: str, padding: str, align_corners: int) -> None:
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    check("GridSample", 16, [real(2, 3, 5, 6), 1.3 * real(2, 4, 7, 2)], 1, attributes)


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("DeformConv", 19, real(2, 4, 6, 7), const(real(6, 4, 3, 3)), real(2, 18, 4, 5)),
        case("DeformConv", 19, real(1, 4, 6, 7), const(real(6, 2, 3, 3)), real(1, 36, 3, 4),
             const(real(6)), positive(1, 18, 3, 4), strides=[2, 2], pads=[1, 1, 1, 1], group=2,
             offset_group=2),
        case("Col2Im", 18, real(1, 12, 12), shape(4, 5), shape(2, 2)),
        case("Col2Im", 18, real(1, 12, 6), shape(4, 5), shape(2, 3), strides=[2, 2],
             pads=[0, 1, 0, 1]),
        case("MaxUnpool", 11, real(1, 1, 2, 2), const(ints(5, 7, 13, 15).reshape(1, 1, 2, 2)),
             kernel_shape=[2, 2], strides=[2, 2]),
        case("AffineGrid", 20, real(2, 2, 3), shape(2, 3, 4, 5)),
        case("CenterCropPad", 18, real(5, 4), shape(3, 7)),
        case("DFT", 17, real(2, 8, 1), axis=1),
        case("DFT", 20, real(2, 8, 2), None, const(ints(1).reshape(()))),
        case("DFT", 17, real(2, 8, 2), const(ints(6).reshape(())), axis=1, inverse=1),
        case("DFT", 17, real(2, 9, 1), axis=1, onesided=1),
        case("STFT", 17, real(2, 40, 1), const(ints(8).reshape(())), const(positive(16))),
    ],
)  # fmt: skip
def test_sampling_and_transforms(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    model, inputs = node_model(op_type, operands, opset, outputs, **attributes)
    assert_agrees(model, inputs)


@pytest.mark.parametrize(
    ARGUMENTS,
    [
        case("Attention", 23, real(2, 3, 4, 8), real(2, 3, 6, 8), real(2, 3, 6, 5)),
        case("Attention", 23, real(2, 4, 24), real(2, 6, 24), real(2, 6, 24), q_num_heads=3,
             kv_num_heads=3, scale=0.3),
        case("Attention", 23, real(2, 4, 4, 8), real(2, 2, 6, 8), real(2, 2, 6, 8)),
        case("Attention", 23, real(2, 3, 6, 8), real(2, 3, 6, 8), real(2, 3, 6, 8), is_causal=1),
        case("Attention", 23, real(2, 3, 4, 8), real(2, 3, 6, 8), real(2, 3, 6, 8), real(4, 6)),
        case("Attention", 23, real(2, 3, 4, 8), real(2, 3, 6, 8), real(2, 3, 6, 8),
             real(2, 1, 4, 6) > -1, softcap=2.0),
        case("Attention", 23, real(2, 3, 4, 8), real(2, 3, 6, 8), real(2, 3, 6, 8), None,
             real(2, 3, 5, 8), real(2, 3, 5, 8), outputs=3),
    ],
)  # fmt: skip
def test_attention(
    op_type: str, opset: int, operands: list[Operand], outputs: int, attributes: dict[str, Any]
) -> None:
    check(op_type, opset, operands, outputs, attributes)
