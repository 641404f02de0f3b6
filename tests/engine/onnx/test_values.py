"""Values that ONNX Runtime refuses are refused, naming the operator and the value.

Each row has values at the ends of what the operator takes, and values beyond.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from braid.core.errors import InvalidRequest
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from tests.engine.cpu.executors import answered, executor_of
from tests.engine.onnx.operands import Random, ints, shape
from tests.engine.onnx.oracle import (
    Array,
    Arrays,
    Operand,
    assert_same,
    node_model,
    through_braid,
    through_onnxruntime,
)

RANDOM = Random(4)
real = RANDOM.real
INT32 = np.iinfo(np.int32)
INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Row:
    """One operator, and values of one of its operands."""

    op_type: str
    opset: int
    operands: Callable[[Any], Sequence[Operand]]  # with a value in its place
    good: Sequence[Any]
    bad: Sequence[Any]
    outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)

    def given(self, value: Any) -> tuple[Any, Arrays]:
        return node_model(
            self.op_type, self.operands(value), self.opset, self.outputs, **self.attributes
        )


def attention(length: int) -> list[Operand]:
    keys = real(2, 1, 5, 4)
    return [real(2, 1, 3, 4), keys, keys, None, None, None, ints(5, length)]


def scattered(reduction: str) -> list[Row]:
    elements, tuples = [-5, 4], [5, -6, INT64.min, INT64.max]
    return [
        Row("ScatterElements", 18, lambda v: [real(4, 5), ints(0, v).reshape(1, 2), real(1, 2)],
            elements, tuples, 1, {"axis": 1, "reduction": reduction}),
        Row("ScatterND", 18, lambda v: [real(4, 5), ints(1, v).reshape(1, 2), real(1)],
            elements, tuples, 1, {"reduction": reduction}),
    ]  # fmt: skip


def divided(op_type: str, opset: int, dtype: Any, *good: int, **attributes: int) -> Row:
    def operands(value: int) -> list[Operand]:
        return [np.array([7, 9, 8], dtype), np.array([2, value, 3], dtype)]

    return Row(op_type, opset, operands, [1, np.iinfo(dtype).max, *good], [0], 1, attributes)


def floats(*values: float) -> list[Operand]:
    return [np.array(value, np.float32) for value in values]


INDICES = [
    Row("Gather", 13, lambda v: [real(4, 5), ints(0, v)], [-4, 3], [4, -5, INT64.max]),
    Row("Gather", 13, lambda v: [real(4, 5), ints(v, 0)], [-5, 4], [5, -6], 1, {"axis": 1}),
    Row("Gather", 13, lambda v: [real(4, 5), np.array(v, np.int32)], [-4, 3], [4, INT32.min]),
    Row("Gather", 13, lambda v: [real(4, 5, 3), ints(v)], [-5, 4], [5, -6], 1, {"axis": -2}),
    Row("GatherElements", 13, lambda v: [real(4, 5), ints(0, v).reshape(1, 2)], [-4, 3], [4, -5]),
    Row("GatherND", 13, lambda v: [real(3, 4, 5), ints(1, v).reshape(1, 2)], [-4, 3], [4, -5]),
    Row("GatherND", 13, lambda v: [real(2, 4, 5), ints(1, v).reshape(2, 1)], [-4, 3], [4, -5],
        1, {"batch_dims": 1}),
    *scattered("none"), *scattered("add"), *scattered("max"),
    Row("NegativeLogLikelihoodLoss", 13, lambda v: [real(2, 3), ints(0, v)], [0, 2], [3, -4]),
    Row("SoftmaxCrossEntropyLoss", 13, lambda v: [real(2, 3), ints(0, v)], [0, 2], [3, -4]),
    Row("RotaryEmbedding", 23, lambda v: [real(1, 2, 2, 4), real(6, 2), real(6, 2),
        ints(0, v).reshape(1, 2)], [0, 5], [6, -7]),
]  # fmt: skip

LENGTHS = [
    Row("ReverseSequence", 10, lambda v: [real(5, 2, 3), ints(5, v)], [0, 1, 5], [6, -1, INT64.max],
        1, {"time_axis": 0, "batch_axis": 1}),
    Row("ReverseSequence", 10, lambda v: [real(2, 5), ints(v, 3)], [0, 5], [6, -1], 1,
        {"time_axis": 1, "batch_axis": 0}),
    Row("Attention", 24, attention, [0, 1, 5], [6, -1]),
    Row("Attention", 24, attention, [3, 5], [6, -1], 1, {"is_causal": 1}),
]  # fmt: skip

DIVISORS = [
    divided(op_type, opset, dtype)
    for op_type, opset in (("Div", 14), ("Mod", 13))
    for dtype in (np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64)
] + [divided("Mod", 13, np.int64, -1, INT64.min, fmod=1)]

SIZES = [  # content that decides shapes
    Row("TopK", 11, lambda v: [real(3, 5), ints(v)], [0, 5], [6, -1], 2),
    Row("OneHot", 11, lambda v: [ints(0, 7, -2), ints(v), real(2)], [1, 8], [0, -1]),
    Row("Reshape", 14, lambda v: [real(2, 3), ints(*v)], [[-1], [0, -1], [3, 2]],
        [[7], [-2, -3], [-1, -1], [0, 0, 0], [4, -1]]),
    Row("Reshape", 14, lambda v: [real(0, 3), ints(*v)], [[-1, 3], [0, 5]], [[0, -1]]),
    Row("Expand", 13, lambda v: [real(3, 1), ints(v)], [1, 4], [-1, -2]),
    Row("Tile", 13, lambda v: [real(3, 2), ints(1, v)], [0, 3], [-1]),
    Row("Pad", 19, lambda v: [real(3, 4), ints(*v)], [[0, 9, 0, -4], [-3, 1, 1, 0]],
        [[0, -5, 0, 0], [-2, 0, -2, 0], [0, 0, 0]]),
    Row("Pad", 19, lambda v: [real(3, 4), ints(*v)], [[2, 3, 0, 0], [-1, 0, 1, 0], [0, 0, -1, 3]],
        [[3, 0, 0, 0], [0, 0, 0, 4], [-1, 0, 2, 0]], 1, {"mode": "reflect"}),
    Row("Pad", 19, lambda v: [real(3, 4), ints(*v)], [[9, 9, 0, 0], [-2, 0, 5, 0]],
        [[-3, 0, 5, 0], [-2, 0, -1, 0]], 1, {"mode": "edge"}),
    Row("Pad", 19, lambda v: [real(3, 4), ints(*v)], [[5, 0, 0, 0], [-2, 0, 5, 0]],
        [[-3, 0, 5, 0]], 1, {"mode": "wrap"}),
    Row("Slice", 13, lambda v: [real(5), ints(0), ints(5), ints(0), ints(v)], [1, -1, 9], [0]),
    Row("Slice", 13, lambda v: [real(5, 3), ints(0), ints(5), ints(v)], [-2, 1], [2, -3]),
    Row("Slice", 13, lambda v: [real(5, 3), ints(0, 1), ints(5, 2), ints(*v)], [[0, 1]],
        [[0, 0], [1, -1]]),
    Row("Split", 13, lambda v: [real(6), ints(*v)], [[6, 0], [2, 4]], [[7, -1], [2, 3], [1, 2, 3]],
        2),
    Row("ConstantOfShape", 9, lambda v: [ints(2, v)], [0, 3], [-1, 1 << 40]),
    Row("Range", 11, lambda v: [np.array(0), np.array(4), np.array(v)], [1, -1, 9], [0]),
    Row("Range", 11, lambda v: [*floats(0, 4, v)], [1, -1], [0, np.nan]),
    Row("Range", 11, lambda v: [*floats(0, v, 1)], [-1, 2.5],
        [np.inf, np.nan]),
    Row("CumSum", 14, lambda v: [real(3, 4), np.array(v)], [-2, 1], [2, -3]),
    Row("Unsqueeze", 13, lambda v: [real(3, 4), ints(v)], [-3, 2], [3, -4]),
    Row("Unsqueeze", 13, lambda v: [real(3, 4), ints(*v)], [[0, 1]], [[1, 1], [0, -4]]),
    Row("Squeeze", 13, lambda v: [real(1, 4, 1), ints(v)], [-3, 2], [3, -4, 1]),
    Row("ReduceSum", 13, lambda v: [real(3, 4), ints(v)], [-2, 1], [2, -3]),
    Row("ReduceMax", 18, lambda v: [real(3, 4), ints(v)], [-2, 1], [2, -3]),
    Row("ReduceProd", 18, lambda v: [real(3, 4), ints(v)], [-2, 1], [2, -3]),
    Row("DFT", 20, lambda v: [real(1, 6, 1), None, np.array(v)], [1, -2], [3, -4]),
    Row("DFT", 17, lambda v: [real(1, 6, 1), np.array(v)], [1, 9], [0, -1]),
    Row("STFT", 17, lambda v: [real(1, 16, 1), np.array(v), None, np.array(4)], [1, 40], [0, -1]),
    Row("STFT", 17, lambda v: [real(1, 16, 1), np.array(1), real(4), np.array(v)], [4], [3, 5]),
    Row("HannWindow", 17, lambda v: [np.array(v)], [7], []),
    Row("BlackmanWindow", 17, lambda v: [np.array(v)], [7], []),
    Row("Resize", 13, lambda v: [real(1, 1, 4, 4), None, np.array([1, 1, v, 1], np.float32)],
        [0.5, 2], [0, -1, np.nan]),
    Row("Resize", 13, lambda v: [real(1, 1, 4, 4), None, None, shape(1, 1, v, 4)], [1, 9], [0]),
    Row("Upsample", 9, lambda v: [real(1, 1, 4, 4), np.array([1, 1, v, 1], np.float32)], [1, 2],
        [0.5, 0, -1, np.nan]),
]  # fmt: skip

ROWS = [*INDICES, *LENGTHS, *DIVISORS, *SIZES]
NAMES = [f"{number}-{row.op_type}" for number, row in enumerate(ROWS)]


executor = executor_of(threads=1)


def on_executor(model: Any, inputs: Arrays, executor: CpuExecutor) -> dict[str, Array]:
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
    results = answered(*lower(prepare(model)), tensors, executor)
    return {name: tensor.numpy() for name, tensor in results.items()}


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_values_at_the_ends_of_the_range_are_answered(row: Row, executor: CpuExecutor) -> None:
    for value in row.good:
        model, inputs = row.given(value)
        expected = through_onnxruntime(model, inputs)
        assert_same(through_braid(model, inputs)[0], expected, 1e-5)
        assert_same(on_executor(model, inputs, executor), expected, 1e-5)


REFUSED = r"^operator '[\w~]+' \((braid|aten)\."


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_values_beyond_the_range_are_refused_by_name(row: Row, executor: CpuExecutor) -> None:
    for value in row.bad:
        model, inputs = row.given(value)
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            through_onnxruntime(model, inputs)
        with pytest.raises(InvalidRequest, match=REFUSED):
            through_braid(model, inputs)
        with pytest.raises(InvalidRequest, match=REFUSED) as refusal:
            on_executor(model, inputs, executor)
        if not any(row is size for size in SIZES):
            assert re.search(rf"cannot use the \w+ {value}; it takes ", str(refusal.value))


RESETS = {"linear_before_reset": 1}


def recurrent(kind: str, gates: int, **attributes: Any) -> Row:
    """A layer over two sequences, and so many first states."""

    def operands(states: int) -> list[Operand]:
        weights = real(1, gates * 4, 3), real(1, gates * 4, 4), real(1, gates * 8)
        return [real(5, 2, 3), *weights, None, real(1, states, 4)]

    return Row(kind, 14, operands, [], [1, 3], 2, {"hidden_size": 4, **attributes})


MISFITS = [  # operands that would be broadcast, cut or read beyond their end
    *(
        recurrent(kind, gates, direction=direction, **more)
        for kind, gates, more in (("LSTM", 4, {}), ("GRU", 3, RESETS), ("RNN", 1, {}))
        for direction in ("forward", "reverse")
    ),
    Row("ReverseSequence", 10, lambda v: [real(5, 2, 3), ints(*v)], [], [[3], [3, 3, 3]]),
    Row("Attention", 24, lambda v: [*attention(3)[:6], ints(*v)], [], [[3], [3, 3, 3]]),
    Row("ScatterElements", 18, lambda v: [real(3, 4), np.ones(v, np.int64), real(2, 3)], [],
        [(1, 3), (2, 2), (2, 4)]),
    Row("ScatterND", 18, lambda v: [real(3, 4), np.ones((2, 2), np.int64), real(*v)], [],
        [(2, 1), (1,)]),
    Row("Conv", 11, lambda v: [real(1, 3, 5, 5), real(2, 3, 3, 3), real(v)], [], [1, 3]),
]  # fmt: skip


@pytest.mark.parametrize("row", MISFITS, ids=lambda row: row.op_type)
def test_operands_that_do_not_fit_are_refused(row: Row, executor: CpuExecutor) -> None:
    for value in row.bad:
        model, inputs = row.given(value)
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            through_onnxruntime(model, inputs)
        with pytest.raises(InvalidRequest, match=r"^operator '[\w~]+' .* of shape \[.*\], not \["):
            on_executor(model, inputs, executor)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_least_integer_divided_by_minus_one_is_itself(dtype: Any) -> None:
    """ONNX Runtime's process, as torch's, would end here with a SIGFPE."""
    least = np.iinfo(dtype).min
    operands: list[Operand] = [
        np.array([least, 7, -9, least], dtype),
        np.array([-1, -1, 2, 2], dtype),
    ]

    (found,) = through_braid(*node_model("Div", operands, 14))[0].values()

    assert found.tolist() == [least, -7, -4, least // 2]
