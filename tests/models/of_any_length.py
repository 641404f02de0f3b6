"""Small models with an open length, on whose outputs it acts in different ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.models.graphs import as_model, graph, tensors

node = helper.make_node
Array = np.ndarray[Any, Any]
WIDTH = 8
WORDS = 16


@dataclass(frozen=True)
class AnyLength:
    """A model, and inputs of so many rows and of some length."""

    model: onnx.ModelProto
    inputs: Callable[[np.random.Generator, int, int], Mapping[str, Array]]


def _floats(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def masked_attention() -> AnyLength:
    """Ids and a mask [batch, length] -> attention over the words whose mask is 1."""
    random = np.random.default_rng(1)
    weights = {"table": _floats(random, WORDS, WIDTH), "axis": np.array([1])}
    weights |= {"one": np.array(1, np.float32), "low": np.array(-1e4, np.float32)}
    weights |= {f"w{name}": _floats(random, WIDTH, WIDTH) / 3 for name in "qkv"}
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        node("Sub", ["one", "kept"], ["gone"]),
        node("Mul", ["gone", "low"], ["bias"]),
        node("Unsqueeze", ["bias", "axis"], ["row"]),
        node("Add", ["scores", "row"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = tensors(TensorProto.INT64, ids=["batch", "length"], mask=["batch", "length"])
    drawn = graph(nodes, inputs, tensors(y=["batch", "length", WIDTH]), weights)

    def draw(random: np.random.Generator, rows: int, length: int) -> Mapping[str, Array]:
        mask = np.arange(length) < random.integers(1, length + 1, (rows, 1))
        ids = random.integers(0, WORDS, (rows, length))
        return {"ids": ids, "mask": mask.astype(np.int64)}

    return AnyLength(as_model(drawn), draw)


def _of_floats(
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, Array],
    shape: tuple[int | str, ...],
    outputs: list[onnx.ValueInfoProto],
) -> AnyLength:
    """A model of ``x``, in whose shape stand ``batch`` and ``length``."""

    def draw(random: np.random.Generator, rows: int, length: int) -> Mapping[str, Array]:
        extents = {"batch": rows, "length": length}
        return {"x": _floats(random, *(extents.get(str(dim)) or int(dim) for dim in shape))}

    return AnyLength(as_model(graph(nodes, tensors(x=shape), outputs, weights)), draw)


def convolution_over_time() -> AnyLength:
    """Every second place of a convolution: half as long, which is no input's extent."""
    weight = _floats(np.random.default_rng(2), 6, 4, 3)
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1], strides=[2])]
    shape = ("batch", 4, "length")
    return _of_floats(nodes, {"w": weight}, shape, tensors(y=["batch", 6, "half"]))


def pooling() -> AnyLength:
    """The mean over the length, without a mask."""
    nodes = [node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)]
    return _of_floats(nodes, {}, ("batch", "length", 4), tensors(y=["batch", 4]))


def batch_statistics() -> AnyLength:
    """Rows without their common mean: no function of single rows."""
    nodes = [node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), node("Sub", ["x", "m"], ["y"])]
    return _of_floats(nodes, {}, ("batch", "length", 4), tensors(y=["batch", "length", 4]))


def argmax() -> AnyLength:
    """Where the length has its largest element."""
    nodes = [node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)]
    outputs = tensors(TensorProto.INT64, y=["batch"])
    return _of_floats(nodes, {}, ("batch", "length"), outputs)


def lstm() -> AnyLength:
    """All states of an LSTM: [length, 1, batch, 4]."""
    random = np.random.default_rng(3)
    weights = {"w": _floats(random, 1, 16, 3) / 2, "r": _floats(random, 1, 16, 4) / 2}
    nodes = [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)]
    shape = ("length", "batch", 3)
    return _of_floats(nodes, weights, shape, tensors(y=["length", 1, "batch", 4]))


def positives() -> AnyLength:
    """Where elements are positive: how many there are follows the content."""
    nodes = [node("Relu", ["x"], ["p"]), node("NonZero", ["p"], ["y"])]
    return _of_floats(nodes, {}, ("length", 4), tensors(TensorProto.INT64, y=[2, "positives"]))


ALL = (
    *(masked_attention, convolution_over_time, pooling, batch_statistics, argmax, lstm),
    positives,
)
