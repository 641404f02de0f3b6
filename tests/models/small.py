"""Small ONNX models: a network with branches, a table to look up, a model without operators."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.models.graphs import graph, parsed, save, tensors


def written(path: Path, text: str, **constants: Any) -> Path:
    """Write a model in ONNX's text format as a file."""
    path.write_bytes(parsed(text, constants).SerializeToString())
    return path


def in_text(element: int) -> str:
    """An element type as that format has it."""
    return str(TensorProto.DataType.Name(element)).lower()


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
    text = "(int64[batch, 4] ids) => (float[batch, 4, 2] y) { y = Gather(table, ids) }"
    return written(path, text, table=np.arange(20, dtype=np.float32).reshape(10, 2))


def open_length(path: Path, element: int = TensorProto.FLOAT) -> Path:
    """x [batch, length] -> 2 x: each length is a shape of its own."""
    tensor = f"{in_text(element)}[batch, length]"
    return written(path, f"({tensor} x) => ({tensor} y) {{ y = Add(x, x) }}")


def by_values(path: Path) -> Path:
    """Rows of a table of 10, the first ``lengths`` of them reversed; and ids / by, truncated."""
    made = parsed(
        """(int64[batch, 4] ids, int64[batch] lengths, int64[batch, 4] by)
        => (float[batch, 4, 2] rows, int64[batch, 4] quotients) {
          picked = Gather(table, ids)
          rows = ReverseSequence<batch_axis=0, time_axis=1>(picked, lengths)
          quotients = Div(ids, by) }""",
        {"table": np.arange(20, dtype=np.float32).reshape(10, 2)},
    )
    for node, name in zip(made.graph.node, ("look_up", "turn", "divide"), strict=True):
        node.name = name
    path.write_bytes(made.SerializeToString())
    return path


def identity(path: Path) -> Path:
    """x [batch, 3] -> the same, and a constant: a model without a single operator to run."""
    text = """(float[batch, 3] x) => (float[batch, 3] y, float[2] c)
    { y = Identity(x)  c = Identity(two) }"""
    return written(path, text, two=np.array([1.5, 2.5], np.float32))


def doubling(path: Path, element: int = TensorProto.FLOAT, *, columns: int = 3) -> Path:
    """x [batch, columns] -> y = x + x, in any element type."""
    tensor = f"{in_text(element)}[batch, {columns}]"
    return written(path, f"({tensor} x) => ({tensor} y) {{ y = Add(x, x) }}")


def choosing(path: Path, element: int) -> Path:
    """(x [n], keep BOOL [n]) -> the elements of x to keep: ONNX Runtime runs it."""
    name = in_text(element)
    return written(
        path, f"({name}[n] x, bool[n] keep) => ({name}[kept] y) {{ y = Compress<axis=0>(x, keep) }}"
    )


def adds(path: Path, number: int) -> Path:
    """x [batch, 3] -> x + number."""
    text = "(float[batch, 3] x) => (float[batch, 3] y) { y = Add(x, term) }"
    return written(path, text, term=np.float32(number))


def two_inputs(path: Path) -> Path:
    """(a, b) FP32 [batch, 3] -> a - b, a + b."""
    text = """(float[batch, 3] a, float[batch, 3] b)
    => (float[batch, 3] minus, float[batch, 3] plus) { minus = Sub(a, b)  plus = Add(a, b) }"""
    return written(path, text)


def product(path: Path, w: np.ndarray) -> Path:
    """x [batch, rows of w] -> x w: a large file that is small to compute."""
    rows, columns = w.shape
    text = f"(float[batch, {rows}] x) => (float[batch, {columns}] y) {{ y = MatMul(x, w) }}"
    return written(path, text, w=w)


def row_sums(path: Path, columns: int) -> Path:
    """x [batch, 3] -> y [batch, columns], each element the sum of the row."""
    return product(path, np.ones((3, columns), np.float32))


def two_layers(path: Path, width: int, outputs: int) -> Path:
    """x [batch, width] -> linear -> relu -> linear -> y [batch, outputs]."""
    rng = np.random.default_rng(6)
    first, last = (
        rng.normal(size=(width, columns)).astype(np.float32) / width**0.5
        for columns in (width, outputs)
    )
    text = f"""(float[batch, {width}] x) => (float[batch, {outputs}] y)
    {{ h = MatMul(x, first)  r = Relu(h)  y = MatMul(r, last) }}"""
    return written(path, text, first=first, last=last)


def repeating(path: Path) -> Path:
    """x UINT8 [1], r INT64 [1] -> y, x as often as r says."""
    return written(path, "(uint8[1] x, int64[1] r) => (uint8[count] y) { y = Expand(x, r) }")


def unknown_operator(path: Path) -> Path:
    """x -> y by an operator that does not exist."""
    return written(path, "(float[1] x) => (float[1] y) { y = Gyre(x) }")


def best_boxes(path: Path) -> Path:
    """The best 3 of 6 boxes of one image, by NonMaxSuppression; it takes no second image."""
    text = """(float[1, 6, 4] boxes, float[1, 1, 6] scores) => (float[1, 3, 4] best) {
      chosen = NonMaxSuppression(boxes, scores, most, iou)
      numbers = Gather<axis=1>(chosen, two)  padded = Concat<axis=0>(numbers, padding)
      first = Slice(padded, start, end)  best = Gather<axis=1>(boxes, first) }"""
    constants: dict[str, Any] = {"most": [3], "iou": np.array([0.5], np.float32), "two": 2}
    return written(path, text, **constants, padding=np.zeros(3, np.int64), start=[0], end=[3])
