"""ONNX operators on shapes, extents and indices against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.onnx.operands import Node, Random, case, check, const, ints, shape
from tests.engine.onnx.oracle import Operand

RANDOM = Random(0)
real, positive, whole = RANDOM.real, RANDOM.positive, RANDOM.whole


@pytest.mark.parametrize(
    "node",
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
def test_reducing_and_indexing(node: Node) -> None:
    check(*node)
