"""Small models with an open length, on whose outputs it acts in different ways."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.models.graphs import parsed

Array = np.ndarray[Any, Any]
WIDTH = 8
WORDS = 16
MOST = 128
"""Length up to which every model answers."""


@dataclass(frozen=True)
class AnyLength:
    """A model, and inputs of so many rows and of some length."""

    model: onnx.ModelProto
    inputs: Callable[[np.random.Generator, int, int], Mapping[str, Array]]


def _floats(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def _of(text: str, **weights: Any) -> AnyLength:
    """A model in whose inputs ``batch`` and ``length`` stand; ``mask`` ends some rows early."""
    made = parsed(text, weights)

    def draw(random: np.random.Generator, rows: int, length: int) -> Mapping[str, Array]:
        extents = {"batch": rows, "length": length}
        drawn: dict[str, Array] = {}
        for info in made.graph.input:
            dims = info.type.tensor_type.shape.dim
            shape = [extents.get(dim.dim_param, dim.dim_value) for dim in dims]
            if info.name == "mask":
                ends = random.integers(1, length + 1, (rows, 1))
                drawn["mask"] = (np.arange(length) < ends).astype(np.int64)
            elif info.name == "ids":
                drawn["ids"] = random.integers(0, WORDS, shape)
            else:
                drawn[info.name] = _floats(random, *shape)
        return drawn

    return AnyLength(made, draw)


def _attention(inputs: str, before: str, **weights: Any) -> AnyLength:
    """Attention over ``x``; ``before`` makes ``bias``, which is added to the scores."""
    random = np.random.default_rng(1)
    return _of(
        f"""({inputs}) => (float[batch, length, {WIDTH}] y) {{ {before}
          q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
          kt = Transpose<perm=[0, 2, 1]>(k)  scores = MatMul(q, kt)
          masked = Add(scores, bias)  p = Softmax<axis=-1>(masked)  y = MatMul(p, v) }}""",
        table=_floats(random, WORDS, WIDTH),
        **{f"w{name}": _floats(random, WIDTH, WIDTH) / 3 for name in "qkv"},
        low=np.float32(-1e4),
        **weights,
    )


def masked_attention() -> AnyLength:
    """Ids and a mask [batch, length] -> attention over the words whose mask is 1."""
    return _attention(
        "int64[batch, length] ids, int64[batch, length] mask",
        """x = Gather(table, ids)  kept = Cast<to=1>(mask)  gone = Sub(one, kept)
        far = Mul(gone, low)  bias = Unsqueeze(far, axis)""",
        one=np.float32(1),
        axis=[1],
    )


def causal_attention() -> AnyLength:
    """Attention over what comes before."""
    return _attention(
        f"float[batch, length, {WIDTH}] x",
        """extent = Shape<start=1, end=2>(x)  square = Concat<axis=0>(extent, extent)
        all = Expand(low, square)  bias = Trilu<upper=1>(all, next)""",
        next=1,
    )


def masked_mean() -> AnyLength:
    """The mean over the positions whose mask is 1."""
    return _of(
        """(float[batch, length, 4] x, int64[batch, length] mask) => (float[batch, 4] y) {
          flat = Cast<to=1>(mask)  kept = Unsqueeze(flat, last)  left = Mul(x, kept)
          sum = ReduceSum<keepdims=0>(left, axis)  count = ReduceSum<keepdims=0>(kept, axis)
          y = Div(sum, count) }""",
        last=[2],
        axis=[1],
    )


def positions() -> AnyLength:
    """Rows of a table are added by position."""
    return _of(
        """(float[batch, length, 4] x) => (float[batch, length, 4] y) {
          extent = Shape<start=1, end=2>(x)  places = Slice(table, first, extent, first)
          y = Add(x, places) }""",
        table=_floats(np.random.default_rng(4), MOST, 4),
        first=[0],
    )


def convolution_over_time() -> AnyLength:
    """Every second place of a convolution: half as long, which is no input's extent."""
    return _of(
        """(float[batch, 4, length] x) => (float[batch, 6, half] y)
        { y = Conv<pads=[1, 1], strides=[2]>(x, w) }""",
        w=_floats(np.random.default_rng(2), 6, 4, 3),
    )


def pooling() -> AnyLength:
    """The mean over the length, without a mask."""
    return _of(
        """(float[batch, length, 4] x) => (float[batch, 4] y)
        { y = ReduceMean<axes=[1], keepdims=0>(x) }"""
    )


def softmax_over_length() -> AnyLength:
    """A mean by weights that add up to 1 over the length."""
    return _of(
        """(float[batch, length, 4] x) => (float[batch, 4] y) {
          score = MatMul(x, w)  part = Softmax<axis=1>(score)  parts = Mul(x, part)
          y = ReduceSum<keepdims=0>(parts, axis) }""",
        w=_floats(np.random.default_rng(5), 4, 1),
        axis=[1],
    )


def batch_statistics() -> AnyLength:
    """Rows without their common mean: no function of single rows."""
    return _of(
        """(float[batch, length, 4] x) => (float[batch, length, 4] y)
        { m = ReduceMean<axes=[0], keepdims=1>(x)  y = Sub(x, m) }"""
    )


def argmax() -> AnyLength:
    """Where the length has its largest element."""
    return _of(
        """(float[batch, length] x) => (int64[batch] y) { y = ArgMax<axis=1, keepdims=0>(x) }"""
    )


def reversed_sequence() -> AnyLength:
    """The last position first."""
    return _of(
        """(float[batch, length, 4] x) => (float[batch, length, 4] y)
        { y = Slice(x, last, before, axis, last) }""",
        last=[-1],
        before=[np.iinfo(np.int64).min],
        axis=[1],
    )


def lstm() -> AnyLength:
    """All states of an LSTM: [length, 1, batch, 4]."""
    random = np.random.default_rng(3)
    return _of(
        """(float[length, batch, 3] x) => (float[length, 1, batch, 4] y)
        { y = LSTM<hidden_size=4>(x, w, r) }""",
        w=_floats(random, 1, 16, 3) / 2,
        r=_floats(random, 1, 16, 4) / 2,
    )


def positives() -> AnyLength:
    """Where elements are positive: how many there are follows the content."""
    return _of("(float[length, 4] x) => (int64[2, positives] y) { p = Relu(x)  y = NonZero(p) }")


BATCHED = (*(masked_attention, convolution_over_time, pooling, batch_statistics, argmax, lstm),)
ALL = (*BATCHED, positives)
MORE = (masked_mean, positions, causal_attention, softmax_over_length, reversed_sequence)
"""Others, batched as well."""
