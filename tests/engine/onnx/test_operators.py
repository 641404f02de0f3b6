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
