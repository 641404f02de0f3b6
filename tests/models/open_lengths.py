"""Small random models with an open length: some whose padding can be masked, most without.

OPEN_LENGTHS: name ──seed──> OpenLength(model, inputs)      x, ids, mask: [rows, length, ...]

Widths and weights are drawn from the seed. Weights and inputs of models that compare elements are
small integers, so that every order of summation finds the same maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from tests.models.kinds import Declared, F, L, model, node

Feed = dict[str, NDArray[Any]]
Inputs = Callable[[int, int, np.random.Generator], Feed]
MOST = 128
"""Length up to which every model answers."""

_WORDS = 50


@dataclass(frozen=True, slots=True)
class OpenLength:
    """A model, and what draws its inputs from rows and a length."""

    model: bytes
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class _Draw:
    """Widths and weights of one model."""

    rng: np.random.Generator
    width: int

    def weights(self, *shape: int) -> NDArray[np.float32]:
        scale = np.float32(shape[-2] ** -0.5 if len(shape) > 1 else 1)
        return self.rng.standard_normal(shape, dtype=np.float32) * scale


OPEN_LENGTHS: dict[str, Callable[[int], OpenLength]] = {}


def _listed(draw: Callable[[_Draw], OpenLength]) -> Callable[[_Draw], OpenLength]:
    def drawn(seed: int) -> OpenLength:
        rng = np.random.default_rng(seed)
        return draw(_Draw(rng, int(rng.integers(4, 17))))

    OPEN_LENGTHS[draw.__name__.strip("_")] = drawn
    return draw


def _steps(width: int) -> Inputs:
    def inputs(rows: int, length: int, rng: np.random.Generator) -> Feed:
        return {"x": rng.standard_normal((rows, length, width), dtype=np.float32)}

    return inputs


def _masked(more: Inputs) -> Inputs:
    """Add a mask that ends some rows early."""

    def inputs(rows: int, length: int, rng: np.random.Generator) -> Feed:
        ends = rng.integers(1, length + 1, (rows, 1))
        if rng.random() < 0.5:
            ends[:] = length
        mask = (np.arange(length) < ends).astype(np.int64)
        return {**more(rows, length, rng), "mask": mask}

    return inputs


def _from_x(
    draw: _Draw,
    nodes: Sequence[NodeProto],
    output: Sequence[int | str | None],
    constants: Mapping[str, Any],
    inputs: Inputs | None = None,
    dtype: int = TensorProto.FLOAT,
) -> OpenLength:
    """A model from ``x`` [rows, length, width] to ``y``."""
    made = model(nodes, {"x": (F, ["b", "t", draw.width])}, {"y": (dtype, output)}, constants)
    return OpenLength(made, inputs or _steps(draw.width))


def _attention(draw: _Draw, bias: Sequence[NodeProto]) -> tuple[list[NodeProto], dict[str, Any]]:
    """From ``x`` to ``y``, with ``bias`` added to the scores."""
    nodes = [
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["across"], perm=[0, 2, 1]),
        node("MatMul", ["q", "across"], ["scores"]),
        *bias,
        node("Add", ["scores", "bias"], ["biased"]),
        node("Softmax", ["biased"], ["parts"], axis=-1),
        node("MatMul", ["parts", "v"], ["mixed"]),
        node("Add", ["x", "mixed"], ["sum"]),
        node("LayerNormalization", ["sum", "scale"], ["y"], axis=-1),
    ]
    weights = {f"w{name}": draw.weights(draw.width, draw.width) for name in "qkv"}
    return nodes, {**weights, "scale": draw.weights(draw.width)}


@_listed
def _masked_attention(draw: _Draw) -> OpenLength:
    bias = [
        node("Cast", ["mask"], ["kept"], to=F),
        node("Sub", ["one", "kept"], ["gone"]),
        node("Mul", ["gone", "far"], ["row"]),
        node("Unsqueeze", ["row", "axis"], ["bias"]),
    ]
    nodes, constants = _attention(draw, bias)
    made = model(
        [node("Gather", ["table", "ids"], ["x"]), *nodes],
        {"ids": (L, ["b", "t"]), "mask": (L, ["b", "t"])},
        {"y": (F, ["b", "t", draw.width])},
        {
            **constants,
            "table": draw.weights(_WORDS, draw.width) * np.float32(5),
            "one": np.float32(1),
            "far": np.float32(-1e4),
            "axis": [1],
        },
    )

    def words(rows: int, length: int, rng: np.random.Generator) -> Feed:
        return {"ids": rng.integers(0, _WORDS, (rows, length))}

    return OpenLength(made, _masked(words))


@_listed
def _masked_mean(draw: _Draw) -> OpenLength:
    nodes = [
        node("Cast", ["mask"], ["flat"], to=F),
        node("Unsqueeze", ["flat", "last"], ["kept"]),
        node("Mul", ["x", "kept"], ["left"]),
        node("ReduceSum", ["left", "axis"], ["sum"], keepdims=0),
        node("ReduceSum", ["kept", "axis"], ["count"], keepdims=0),
        node("Div", ["sum", "count"], ["mean"]),
        node("MatMul", ["mean", "w"], ["y"]),
    ]
    inputs: Declared = {"x": (F, ["b", "t", draw.width]), "mask": (L, ["b", "t"])}
    constants = {"last": [2], "axis": [1], "w": draw.weights(draw.width, 5)}
    made = model(nodes, inputs, {"y": (F, ["b", 5])}, constants)
    return OpenLength(made, _masked(_steps(draw.width)))


@_listed
def _positions(draw: _Draw) -> OpenLength:
    nodes = [
        node("Shape", ["x"], ["length"], start=1, end=2),
        node("Slice", ["table", "first", "length", "first"], ["places"]),
        node("Add", ["x", "places"], ["placed"]),
        node("MatMul", ["placed", "w"], ["wide"]),
        node("Relu", ["wide"], ["y"]),
    ]
    table, weights = draw.weights(MOST, draw.width), draw.weights(draw.width, 6)
    return _from_x(draw, nodes, ["b", "t", 6], {"table": table, "first": [0], "w": weights})


@_listed
def _causal_attention(draw: _Draw) -> OpenLength:
    bias = [
        node("Shape", ["x"], ["length"], start=1, end=2),
        node("Concat", ["length", "length"], ["square"], axis=0),
        node("Expand", ["far", "square"], ["all"]),
        node("Trilu", ["all", "next"], ["bias"], upper=1),
    ]
    nodes, constants = _attention(draw, bias)
    more = {"far": np.float32(-1e4), "next": np.int64(1)}
    return _from_x(draw, nodes, ["b", "t", draw.width], {**constants, **more})


@_listed
def _convolution_over_time(draw: _Draw) -> OpenLength:
    nodes = [
        node("Transpose", ["x"], ["signal"], perm=[0, 2, 1]),
        node("Conv", ["signal", "w", "b"], ["near"], pads=[1, 1]),
        node("Relu", ["near"], ["rectified"]),
        node("Conv", ["rectified", "v"], ["apart"], pads=[2, 2], dilations=[2]),
        node("Transpose", ["apart"], ["y"], perm=[0, 2, 1]),
    ]
    kernels = {
        "w": draw.weights(8, draw.width, 3),
        "b": draw.weights(8),
        "v": draw.weights(6, 8, 3),
    }
    return _from_x(draw, nodes, ["b", "t", 6], kernels)


@_listed
def _strided_convolution(draw: _Draw) -> OpenLength:
    nodes = [
        node("Transpose", ["x"], ["signal"], perm=[0, 2, 1]),
        node("Conv", ["signal", "w"], ["half"], pads=[1, 2], strides=[2]),
        node("Sigmoid", ["half"], ["y"]),
    ]
    return _from_x(draw, nodes, ["b", 7, "half"], {"w": draw.weights(7, draw.width, 4)})


@_listed
def _pooling_over_length(draw: _Draw) -> OpenLength:
    nodes = [
        node("MatMul", ["x", "w"], ["wide"]),
        node("ReduceMean", ["wide"], ["mean"], axes=[1], keepdims=0),
        node("ReduceMax", ["wide"], ["most"], axes=[1], keepdims=0),
        node("Concat", ["mean", "most"], ["y"], axis=1),
    ]
    return _from_x(draw, nodes, ["b", 12], {"w": draw.weights(draw.width, 6)})


@_listed
def _softmax_over_length(draw: _Draw) -> OpenLength:
    nodes = [
        node("MatMul", ["x", "w"], ["score"]),
        node("Softmax", ["score"], ["part"], axis=1),
        node("Mul", ["x", "part"], ["parts"]),
        node("ReduceSum", ["parts", "axis"], ["y"], keepdims=0),
    ]
    return _from_x(draw, nodes, ["b", draw.width], {"w": draw.weights(draw.width, 1), "axis": [1]})


@_listed
def _lstm(draw: _Draw) -> OpenLength:
    hidden = int(draw.rng.integers(3, 9))
    nodes = [
        node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        node(
            "LSTM",
            ["steps", "w", "r"],
            ["all", "last"],
            hidden_size=hidden,
            direction="bidirectional",
        ),
        node("Transpose", ["all"], ["z"], perm=[2, 0, 1, 3]),
        node("Transpose", ["last"], ["y"], perm=[1, 0, 2]),
    ]
    made = model(
        nodes,
        {"x": (F, ["b", "t", draw.width])},
        {"z": (F, ["b", "t", 2, hidden]), "y": (F, ["b", 2, hidden])},
        {
            "w": draw.weights(2, 4 * hidden, draw.width) * 2,
            "r": draw.weights(2, 4 * hidden, hidden) * 2,
        },
    )
    return OpenLength(made, _steps(draw.width))


@_listed
def _argmax_over_length(draw: _Draw) -> OpenLength:
    weights = draw.rng.integers(-3, 4, (draw.width, 4)).astype(np.float32)
    nodes = [
        node("MatMul", ["x", "w"], ["score"]),
        node("ArgMax", ["score"], ["y"], axis=1, keepdims=0),
    ]

    def integers(rows: int, length: int, rng: np.random.Generator) -> Feed:
        return {"x": rng.integers(-8, 9, (rows, length, draw.width)).astype(np.float32)}

    return _from_x(draw, nodes, ["b", 4], {"w": weights}, integers, L)


@_listed
def _reversed_sequence(draw: _Draw) -> OpenLength:
    nodes = [
        node("Slice", ["x", "last", "before", "axis", "last"], ["back"]),
        node("Concat", ["x", "back"], ["both"], axis=2),
        node("MatMul", ["both", "w"], ["y"]),
    ]
    constants = {"last": [-1], "before": [np.iinfo(np.int64).min], "axis": [1]}
    weights = draw.weights(2 * draw.width, 6)
    return _from_x(draw, nodes, ["b", "t", 6], {**constants, "w": weights})


@_listed
def _batch_statistics(draw: _Draw) -> OpenLength:
    """Mean and variance over rows and length, as batch normalisation in training takes them."""
    nodes = [
        node("ReduceMean", ["x"], ["mean"], axes=[0, 1]),
        node("Sub", ["x", "mean"], ["centred"]),
        node("Mul", ["centred", "centred"], ["squares"]),
        node("ReduceMean", ["squares"], ["variance"], axes=[0, 1]),
        node("Add", ["variance", "small"], ["positive"]),
        node("Sqrt", ["positive"], ["deviation"]),
        node("Div", ["centred", "deviation"], ["y"]),
    ]
    return _from_x(draw, nodes, ["b", "t", draw.width], {"small": np.float32(1e-2)})
