"""ONNX operators on shapes and indices against ONNX Runtime: what onnx's own tests lack.

Older operator sets, constant operands, and slices at the ends of their range.
"""

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
