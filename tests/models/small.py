"""Small ONNX models: a network with branches, a table to look up, a model without operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.models.graphs import graph, save, tensors


def small_cnn(path: Path, *, branches: int = 3, size: int = 16) -> Path:
    """A convolutional network with parallel branches; symbolic batch, seeded weights.

    x [batch, 3, size, size] -> conv -> (conv, conv, ...) -> concat -> conv -> y
    """
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes = []

    def conv(source: str, result: str, inner: int, outer: int) -> None:
        weight = rng.normal(0, (2 / (inner * 9)) ** 0.5, (outer, inner, 3, 3)).astype(np.float32)
        weights[f"{result}_w"] = weight
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
    image, answer = ["batch", 3, size, size], ["batch", 4, size, size]
    return save(graph(nodes, tensors(x=image), tensors(y=answer), weights, "small_cnn"), path)


def embedding(path: Path) -> Path:
    """ids INT64 [batch, 4] -> rows of a table of 10: an index out of range is a bad value."""
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    inputs, outputs = tensors(TensorProto.INT64, ids=["batch", 4]), tensors(y=["batch", 4, 2])
    return save(graph([node], inputs, outputs, {"table": table}, "embedding"), path)


def open_length(path: Path, element: int = TensorProto.FLOAT) -> Path:
    """x [batch, length] -> 2 x: each length is a shape of its own."""
    node, shape = helper.make_node("Add", ["x", "x"], ["y"]), ["batch", "length"]
    return save(graph([node], tensors(element, x=shape), tensors(element, y=shape)), path)


def by_values(path: Path) -> Path:
    """Rows of a table of 10, the first ``lengths`` of them reversed; and ids / by, truncated."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["picked"], name="look_up"),
        helper.make_node(
            "ReverseSequence",
            ["picked", "lengths"],
            ["rows"],
            name="turn",
            batch_axis=0,
            time_axis=1,
        ),
        helper.make_node("Div", ["ids", "by"], ["quotients"], name="divide"),
    ]
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    inputs = tensors(TensorProto.INT64, ids=["batch", 4], lengths=["batch"], by=["batch", 4])
    outputs = tensors(rows=["batch", 4, 2])
    outputs += tensors(TensorProto.INT64, quotients=["batch", 4])
    return save(graph(nodes, inputs, outputs, {"table": table}, "by_values"), path)


def identity(path: Path) -> Path:
    """x [batch, 3] -> the same, and a constant: a model without a single operator to run."""
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("x", "y"), ("two", "c"))]
    outputs = tensors(y=["batch", 3], c=[2])
    constants = {"two": np.array([1.5, 2.5], np.float32)}
    return save(graph(nodes, tensors(x=["batch", 3]), outputs, constants, "identity"), path)


def doubling(path: Path, element: int = TensorProto.FLOAT, *, columns: int = 3) -> Path:
    """x [batch, columns] -> y = x + x, in any element type."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    shape = ["batch", columns]
    return save(graph([node], tensors(element, x=shape), tensors(element, y=shape)), path)


def choosing(path: Path, element: int) -> Path:
    """(x [n], keep BOOL [n]) -> the elements of x to keep: ONNX Runtime runs it."""
    node = helper.make_node("Compress", ["x", "keep"], ["y"], axis=0)
    given = [*tensors(element, x=["n"]), *tensors(TensorProto.BOOL, keep=["n"])]
    return save(graph([node], given, tensors(element, y=["kept"])), path)


def adds(path: Path, number: int) -> Path:
    """x [batch, 3] -> x + number."""
    node = helper.make_node("Add", ["x", "term"], ["y"])
    term = {"term": np.array(number, np.float32)}
    return save(graph([node], tensors(x=["batch", 3]), tensors(y=["batch", 3]), term), path)


def two_inputs(path: Path) -> Path:
    """(a, b) FP32 [batch, 3] -> a - b, a + b."""
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["minus"]),
        helper.make_node("Add", ["a", "b"], ["plus"]),
    ]
    row = ["batch", 3]
    return save(graph(nodes, tensors(a=row, b=row), tensors(minus=row, plus=row)), path)


def row_sums(path: Path, columns: int) -> Path:
    """x [batch, 3] -> y [batch, columns], each element the sum of the row."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = {"w": np.ones((3, columns), np.float32)}
    return save(graph([node], tensors(x=["batch", 3]), tensors(y=["batch", columns]), weight), path)


def repeating(path: Path) -> Path:
    """x UINT8 [1], r INT64 [1] -> y, x as often as r says."""
    node = helper.make_node("Expand", ["x", "r"], ["y"])
    inputs = tensors(TensorProto.UINT8, x=[1]) + tensors(TensorProto.INT64, r=[1])
    return save(graph([node], inputs, tensors(TensorProto.UINT8, y=["count"])), path)


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
    inputs = tensors(boxes=[1, 6, 4], scores=[1, 1, 6])
    return save(graph(nodes, inputs, tensors(best=[1, 3, 4]), constants, "best_boxes"), path)
