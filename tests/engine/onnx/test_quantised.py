"""Quantised operators of ONNX against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.onnx.operands import Node, Random, case, check, const

RANDOM = Random(0)
real, positive, whole = RANDOM.real, RANDOM.positive, RANDOM.whole
quantised = RANDOM.quantised

ZERO, SIGNED_ZERO = const(120, np.uint8), const(-3, np.int8)


@pytest.mark.parametrize(
    "node",
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
        case("MatMulInteger", 10, quantised(3, 4), const(quantised(4, 5, dtype=np.int8)), ZERO,
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
def test_quantised_integers(node: Node) -> None:
    check(*node)
