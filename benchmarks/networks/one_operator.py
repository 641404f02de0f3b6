"""Models of one operator, with which little is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper


def write_scaled(path: Path, row: Sequence[int], factor: float | None = None) -> Path:
    """Write an ONNX model y = factor * x, or y = x without a factor, over FP32 [batch, *row]."""
    dims: list[str | int | None] = ["batch", *row]
    node = helper.make_node("Identity", ["x"], ["y"])
    constants = []
    if factor is not None:
        node = helper.make_node("Mul", ["x", "factor"], ["y"])
        constants.append(helper.make_tensor("factor", TensorProto.FLOAT, [], [factor]))
    graph = helper.make_graph(
        [node],
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path
