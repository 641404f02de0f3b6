"""Small ONNX models: a network with branches, a table to look up, a model without operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small_cnn(path: Path, *, branches: int = 3, size: int = 16) -> Path:
    """A convolutional network with parallel branches; symbolic batch, seeded weights.

    x [batch, 3, size, size] -> conv -> (conv, conv, ...) -> concat -> conv -> y
    """
    rng = np.random.default_rng(0)
    weights, nodes = [], []

    def conv(source: str, result: str, inner: int, outer: int) -> None:
        weight = rng.normal(0, (2 / (inner * 9)) ** 0.5, (outer, inner, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{result}_w"))
        nodes.append(
            helper.make_node("Conv", [source, f"{result}_w"], [f"{result}_c"], pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"{result}_c"], [result]))

    conv("x", "stem", 3, 8)
    for branch in range(branches):
        conv("stem", f"branch{branch}", 8, 8)
    names = [f"branch{branch}" for branch in range(branches)]
    nodes.append(helper.make_node("Concat", names, ["joined"], axis=1))
    conv("joined", "y", 8 * branches, 4)
    shape: list[str | int] = ["batch", 3, size, size]
    graph = helper.make_graph(
        nodes,
        "small_cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, size, size])],
        weights,
    )
    return save(graph, path)


def embedding(path: Path) -> Path:
    """ids INT64 [batch, 4] -> rows of a table of 10: an index out of range is a bad value."""
    table = numpy_helper.from_array(np.arange(20, dtype=np.float32).reshape(10, 2), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 2])],
        [table],
    )
    return save(graph, path)


def identity(path: Path) -> Path:
    """x [batch, 3] -> the same, and a constant: a model without a single operator to run."""
    constant = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "two")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["two"], ["c"])],
        "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3]),
            helper.make_tensor_value_info("c", TensorProto.FLOAT, [2]),
        ],
        [constant],
    )
    return save(graph, path)


def save(graph: onnx.GraphProto, path: Path) -> Path:
    """Write a model of opset 17."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def best_boxes(path: Path) -> Path:
    """The best 3 of 6 boxes of one image, by NonMaxSuppression; it takes no second image."""
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["chosen"]),
        helper.make_node("Gather", ["chosen", "two"], ["numbers"], axis=1),
        helper.make_node("Concat", ["numbers", "padding"], ["padded"], axis=0),
        helper.make_node("Slice", ["padded", "start", "end"], ["first"]),
        helper.make_node("Gather", ["boxes", "first"], ["best"], axis=1),
    ]
    constants: dict[str, Any] = {
        "most": np.array([3]),
        "iou": np.array([0.5], np.float32),
        "two": np.array(2),
        "padding": np.zeros(3, np.int64),
        "start": np.array([0]),
        "end": np.array([3]),
    }
    graph = helper.make_graph(
        nodes,
        "best_boxes",
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 6, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, 6]),
        ],
        [helper.make_tensor_value_info("best", TensorProto.FLOAT, [1, 3, 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return save(graph, path)
