"""Layers of ONNX against ONNX Runtime: what onnx's own tests lack (tests/conformance).

Older operator sets, constant weights, and windows in every combination of padding and stride.
"""

from typing import Any

import numpy as np
import pytest

from tests.engine.onnx.operands import Node, Random, case, check, const
from tests.engine.onnx.oracle import Operand, assert_agrees, node_model

RANDOM = Random(0)
real, positive, whole = RANDOM.real, RANDOM.positive, RANDOM.whole
IMAGE, SIGNAL, VOLUME = real(2, 4, 9, 10), real(2, 4, 13), real(1, 4, 5, 6, 7)


@pytest.mark.parametrize(
    "node",
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
def test_convolutions(node: Node) -> None:
    check(*node)


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
    "node",
    [
        *(
            case(op_type, 12, IMAGE, kernel_shape=[k, k], strides=[s, s], auto_pad=mode)
            for op_type in ("MaxPool", "AveragePool")
            for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
            for k, s in ((2, 1), (3, 2), (4, 3))
        ),
        case("MaxPool", 12, whole(1, 2, 6, 6, low=0, high=255, dtype=np.uint8),
             kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        case("AveragePool", 7, SIGNAL, kernel_shape=[3], strides=[2], pads=[1, 1]),
        case("AveragePool", 11, IMAGE, kernel_shape=[3, 3], pads=[1, 0, 2, 1], strides=[2, 2],
             count_include_pad=1),
        case("AveragePool", 19, IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
             count_include_pad=1, ceil_mode=1),
        case("AveragePool", 19, IMAGE, kernel_shape=[2, 3], dilations=[2, 2]),
    ],
)  # fmt: skip
def test_pooling(node: Node) -> None:
    check(*node)


CHANNELS = [const(positive(4)), const(real(4)), const(real(4)), const(positive(4))]


@pytest.mark.parametrize(
    "node",
    [
        case("BatchNormalization", 7, IMAGE, *CHANNELS),
        case("BatchNormalization", 9, IMAGE, *CHANNELS, epsilon=0.01, momentum=0.5),
        case("BatchNormalization", 15, real(3, 4), *CHANNELS),
        case("LayerNormalization", 17, real(2, 3, 8), const(real(3, 8)), axis=1, epsilon=0.1),
        case("InstanceNormalization", 7, SIGNAL, const(real(4)), const(real(4)), epsilon=0.1),
        case("LpNormalization", 7, IMAGE, axis=1),
        case("LpNormalization", 7, IMAGE, axis=-1, p=1),
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
def test_normalisations(node: Node) -> None:
    check(*node)


@pytest.mark.parametrize(
    "node",
    [
        case("MatMul", 9, real(2, 3, 4), const(real(4, 5))),
        case("MatMul", 13, real(4), const(real(4, 5))),
        case("MatMul", 13, const(real(3, 4)), real(4, 5)),
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
    ],
)
def test_products(node: Node) -> None:
    check(*node)


def recurrent(gates: int, directions: int, bias: bool, state: int) -> list[Operand]:
    """Operands of a recurrent layer over 5 steps, batch 3, 4 features, 6 hidden units."""
    operands: list[Operand] = [
        real(5, 3, 4),
        const(real(directions, gates * 6, 4)),
        const(real(directions, gates * 6, 6)),
        const(real(directions, 2 * gates * 6)) if bias else None,
        None,
    ]
    return [*operands, *(real(directions, 3, 6) for _ in range(state))]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op_type", "gates", "state", "extra"),
    [
        ("LSTM", 4, 2, {}),
        ("LSTM", 4, 0, {}),
        ("GRU", 3, 1, {"linear_before_reset": 1}),
        ("GRU", 3, 0, {"linear_before_reset": 1}),
        ("RNN", 1, 1, {}),
        ("RNN", 1, 0, {"activations": ["Relu"]}),
    ],
)
def test_recurrent_layers(
    op_type: str, gates: int, state: int, extra: dict[str, Any], direction: str
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    operands = recurrent(gates, directions, bias=state > 0, state=state)
    attributes = {"hidden_size": 6, "direction": direction, **extra}
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * directions

    assert_agrees(*node_model(op_type, operands, 14, 3 if op_type == "LSTM" else 2, **attributes))
