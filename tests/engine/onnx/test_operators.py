"""Operators of ONNX against ONNX Runtime: what onnx's own tests lack (tests/conformance).

Older operator sets, constant operands, broadcasting, unusual attributes and values, slices at the
ends of their range, resizing and transforms.
"""

from typing import Any

import numpy as np
import pytest

from tests.engine.onnx.operands import Node, Random, case, check, const, ints, shape
from tests.engine.onnx.oracle import Operand, assert_agrees, node_model

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


@pytest.mark.parametrize(
    "node",
    [
        case("Reshape", 7, real(2, 3, 4), shape(0, -1)),
        case("Flatten", 9, real(2, 3, 4)),
        case("Squeeze", 7, real(1, 3, 1), axes=[0]),
        case("Squeeze", 11, real(1, 3, 1), axes=[-1]),
        case("Squeeze", 11, real(1, 3, 1)),
        case("Squeeze", 13, real(1, 3, 1), shape(0, 2)),
        case("Unsqueeze", 7, real(3, 4), axes=[0, 3]),
        case("Unsqueeze", 13, real(3, 4), shape(-1, 0)),
        case("Concat", 7, real(2, 3), real(2, 1), real(2, 2), axis=1),
        case("Split", 7, real(6, 4), outputs=2),
        case("Split", 11, real(6, 4), axis=1, split=[1, 3], outputs=2),
        case("Split", 13, real(6, 4), shape(1, 2, 3), outputs=3),
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
        case("Expand", 8, real(3, 1), shape(2, 1, 4)),
        case("Tile", 7, real(2, 3), shape(2, 1)),
        case("Pad", 7, real(3, 4), pads=[1, 0, 2, 3], value=0.5),
        case("Pad", 7, real(3, 4), pads=[1, 0, 2, 3], mode="reflect"),
        case("Pad", 10, real(3, 4), pads=[1, 5, 0, 2], mode="edge"),
        case("Pad", 11, real(3, 4), shape(1, 0, -1, 2), const(2.0)),
        case("Pad", 13, whole(3, 4), shape(1, 1, 1, 1), const(ints(7).reshape(()))),
        case("Trilu", 14, real(4, 5), const(ints(-1).reshape(())), upper=0),
        case("Range", 11, const(1.0), const(0.0), const(-0.3)),
    ],
)
def test_shapes(node: Node) -> None:
    check(*node)


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
    "node",
    [
        case("ReduceSum", 13, real(2, 3), shape(), noop_with_empty_axes=1),
        case("ReduceSum", 13, real(2, 3), None, noop_with_empty_axes=1),
        case("ReduceMean", 18, whole(3, 4, dtype=np.int32), shape(1)),
        case("ReduceMax", 13, whole(3, 4), axes=[0]),
        case("ArgMax", 7, real(3, 4)),
        case("TopK", 7, real(3, 9), k=2, outputs=2),
        case("TopK", 10, real(3, 9), shape(3), axis=0, outputs=2),
        case("Gather", 7, real(4, 5), const(ints(0, 2))),
        case("Gather", 11, real(4, 5), const(ints(-1, 2, -4)), axis=1),
        case("Gather", 13, real(4, 5), const(ints(-2).reshape(())), axis=1),
        case("Gather", 13, real(4, 5), const(np.array([[1, 2]], np.int32)), axis=-1),
        case("ScatterElements", 16, real(3, 5), ints(1, 1, 2).reshape(1, 3), real(1, 3), axis=1,
             reduction="add"),
        case("ScatterElements", 18, real(3, 5), ints(1, 1, 2).reshape(1, 3), real(1, 3), axis=1,
             reduction="max"),
        case("OneHot", 9, whole(2, 3, low=-4, high=5), shape(4), const(ints(2, 5))),
        case("Compress", 11, real(3, 4), const(np.array([True, False, True])), axis=0),
        case("NonZero", 13, const(whole(3, 4, low=0, high=2))),
    ],
)  # fmt: skip
def test_reducing_and_indexing(node: Node) -> None:
    check(*node)


IMAGE, SIGNAL = real(2, 4, 9, 10), real(2, 4, 13)

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
    "node",
    [
        case("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 3.0]),
        case("Upsample", 9, IMAGE, const([1, 1, 1.5, 2])),
        case("Upsample", 9, IMAGE, const([1, 1, 2, 2]), mode="linear"),
        case("Resize", 10, IMAGE, const([1, 1, 2, 2])),
        case("Resize", 10, IMAGE, const([1, 1, 2, 2]), mode="linear"),
        case("Resize", 11, IMAGE, const([]), const([]), shape(2, 4, 20, 5), mode="linear"),
        case("Resize", 13, IMAGE, None, None, shape(2, 4, 20, 15)),
        case("Resize", 13, IMAGE, None, np.array([1, 1, 2, 0.5], np.float32)),
        case("Resize", 13, SIGNAL, None, const([1, 1, 2.5]), mode="linear"),
        case("Resize", 13, real(2, 4, 7, 4), None, None, shape(2, 4, 8, 7),
             coordinate_transformation_mode="asymmetric", nearest_mode="round_prefer_ceil"),
    ],
)  # fmt: skip
def test_resize(node: Node) -> None:
    check(*node)


@pytest.mark.parametrize(
    "node",
    [
        case("Col2Im", 18, real(1, 12, 12), shape(4, 5), shape(2, 2)),
        case("Col2Im", 18, real(1, 12, 6), shape(4, 5), shape(2, 3), strides=[2, 2],
             pads=[0, 1, 0, 1]),
        case("CenterCropPad", 18, real(5, 4), shape(3, 7)),
        case("DFT", 17, real(2, 8, 1), axis=1),
        case("DFT", 20, real(2, 8, 2), None, const(ints(1).reshape(()))),
        case("DFT", 17, real(2, 8, 2), const(ints(6).reshape(())), axis=1, inverse=1),
        case("DFT", 17, real(2, 9, 1), axis=1, onesided=1),
        case("STFT", 17, real(2, 40, 1), const(ints(8).reshape(())), const(positive(16))),
    ],
)  # fmt: skip
def test_sampling_and_transforms(node: Node) -> None:
    check(*node)


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
