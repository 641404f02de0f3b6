"""Small models that ONNX Runtime runs, one for each kind that a server might refuse, with requests.

KINDS: name ──> Kind(model, requests)      ONNX Runtime on the same file is the oracle
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from tests.models.graphs import parsed

Feed = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    model: bytes
    feeds: Sequence[Feed]
    is_random: bool = False  # only the shapes of its outputs can be compared
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # to register it with


def drawn(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def floats(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def narrow(values: Any) -> np.ndarray[Any, Any]:
    """Integers of 32 bits."""
    return np.array(values, np.int32)


def of(
    text: str,
    feeds: Sequence[Mapping[str, Any]],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    **more: Any,
) -> Kind:
    """A kind by its text; constants and requests are arrays, or lists of integers."""
    model = parsed(text, constants, opset).SerializeToString()
    arrays = [{name: np.asarray(value) for name, value in feed.items()} for feed in feeds]
    return Kind(model, arrays, **more)


def each(name: str, *values: Any, **same: Any) -> list[dict[str, Any]]:
    """Requests that differ in one input."""
    return [{**same, name: value} for value in values]


LENGTHS_BY_CONTENT = {
    "a detector that finds nothing": of(
        """(float[b, 3, 32, 32] x) => (float[n, 4] y) {
          c = Conv<strides=[4, 4]>(x, w)  s = Sigmoid(c)  f = Reshape(s, flat)
          t = Transpose<perm=[0, 2, 1]>(f)
          boxes = Slice(t, i0, i4, i2)  scores = Slice(f, i4, i5, i1)
          found = NonMaxSuppression(boxes, scores, most, iou, least)
          at = Gather<axis=1>(found, columns)  y = GatherND(boxes, at) }""",
        each(
            "x",
            drawn(2, 1, 3, 32, 32),
            -50 * np.sign(drawn(1, 1, 3, 1, 1)) + np.zeros((1, 3, 32, 32), np.float32),
            drawn(3, 3, 3, 32, 32),
        ),
        {
            "w": drawn(0, 5, 3, 4, 4) * np.float32(0.2),
            "flat": [0, 5, -1],
            **{f"i{number}": [number] for number in (0, 1, 2, 4, 5)},
            "most": [50],
            "iou": floats([0.6]),
            "least": floats([0.5]),
            "columns": [0, 2],
        },
    ),
    "positions of what is not zero": of(
        "(float[n, 4] x) => (int64[2, k] y) { y = NonZero(x) }",
        each(
            "x",
            drawn(0, 3, 4),
            np.ones((3000, 4), np.float32),  # more than there was room for
            np.zeros((2, 4), np.float32),
        ),
    ),
    "unique values": of(
        """(int64[n] x) => (int64[k] y, int64[k] at, int64[n] back, int64[k] count)
        { y, at, back, count = Unique(x) }""",
        each("x", [3, 1, 3, 2], [7] * 9, [5]),
    ),
    "rows that a condition keeps": of(
        "(float[n, 4] x, bool[n] keep) => (float[k, 4] y) { y = Compress<axis=0>(x, keep) }",
        each("keep", [True, False, True], [False] * 3, x=drawn(0, 3, 4)),
    ),
    "a loop with turns from an input": of(
        """(float[n] x, int64 turns) => (float[n] last, float[k, n] y) {
          last, y = Loop<body = turn (int64 i, bool go, float[] v)
            => (bool on, float[] u, float[] s)
            { on = Identity(go)  u = Add(v, one)  s = Mul(v, v) }>(turns, , x) }""",
        each("turns", 4, 1, 0, x=drawn(0, 3)),
        {"one": np.float32(1)},
    ),
    "a loop that grows what it carries": of(
        """(float[n] x, int64 turns) => (float[k] y) {
          y, ones = Loop<body = turn (int64 i, bool go, float[] v)
            => (bool on, float[] u, float[] s)
            { on = Identity(go)  u = Concat<axis=0>(v, one)  s = Identity(one) }>(turns, , x) }""",
        each("turns", 4, 1, 0, x=drawn(0, 3)),
        {"one": floats([1])},
    ),
    "a scan": of(
        """(float[n, 2] x) => (float[2] last, float[n, 2] y) {
          last, y = Scan<num_scan_inputs=1, body = step (float[2] s, float[2] v)
            => (float[2] t, float[2] u) { t = Add(s, v)  u = Identity(t) }>(start, x) }""",
        each("x", drawn(0, 5, 2), drawn(0, 1, 2)),
        {"start": np.zeros(2, np.float32)},
    ),
    "a branch with another rank": of(
        """(float[n, 4] x) => (float[] y) {
          most = ReduceMax<keepdims=0>(x)  bright = Greater(most, one)
          y = If<then_branch = sum () => (float[] r) { r = ReduceSum<keepdims=0>(x) },
                 else_branch = turn () => (float[] e) { e = Neg(x) }>(bright) }""",
        each("x", *(np.full((2, 4), x, np.float32) for x in (0.5, 3))),
        {"one": np.float32(1)},
    ),
}

NOTHING = {
    "a decoder with an empty cache": of(
        """(float[b, 2, past, 4] past, float[b, 2, seq, 4] x)
        => (float[b, 2, seq, 4] y, float[b, 2, total, 4] present) {
          present = Concat<axis=2>(past, x)  t = Transpose<perm=[0, 1, 3, 2]>(present)
          s = MatMul(x, t)  p = Softmax(s)  y = MatMul(p, present) }""",
        [
            {"past": np.zeros((1, 2, 0, 4), np.float32), "x": drawn(0, 1, 2, 5, 4)},
            {"past": drawn(1, 1, 2, 3, 4), "x": drawn(0, 1, 2, 5, 4)},
            {"past": np.zeros((2, 2, 0, 4), np.float32), "x": drawn(2, 2, 2, 1, 4)},
        ],
        shapes={"past": (1, 2, 3, 4), "x": (1, 2, 1, 4)},
    ),
    "no rows": of(
        "(float[b, 4] x) => (float[b, 3] y) { h = Gemm(x, w)  y = Relu(h) }",
        each("x", drawn(1, 0, 4), drawn(1, 2, 4)),
        {"w": drawn(0, 4, 3)},
    ),
    "no rows of integers": of(
        "(int64[b, 4] x) => (float[b, 4, 3] y) { y = Gather(w, x) }",
        each("x", *(np.zeros((rows, 4), np.int64) for rows in (0, 2))),
        {"w": drawn(0, 9, 3)},
    ),
    "a reshape of nothing": of(
        "(float[n, m] x) => (float[?, ?] y) { r = Reshape<allowzero=1>(x, shape)  y = Relu(r) }",
        each("x", drawn(0, 3, 4), drawn(0, 3, 0), drawn(0, 0, 4)),
        {"shape": [-1, 2]},
    ),
    "a choice between nothings": of(
        """(bool[n, m] c, float[n, m] x) => (float y)
        { w = Where(c, x, z)  y = ReduceSum<keepdims=0>(w) }""",
        [{"c": drawn(0, *s) > 0, "x": drawn(1, *s)} for s in ((2, 3), (2, 0))],
        {"z": np.float32(2)},
    ),
    "regions of an image": of(
        """(float[1, 3, 8, 8] x, float[n, 4] rois, int64[n] batch) => (float[n, 3, 2, 2] y)
        { y = RoiAlign<output_height=2, output_width=2>(x, rois, batch) }""",
        [
            {
                "x": drawn(0, 1, 3, 8, 8),
                "rois": floats([[0, 0, 4, 4], [1, 1, 6, 7]])[:n],
                "batch": np.zeros(n, np.int64),
            }
            for n in (2, 1, 0)
        ],
    ),
    "a constant of length zero": of(
        "(float[n, 2] x) => (float[n, 2] y) { y = Concat<axis=1>(x, none) }",
        each("x", drawn(0, 1, 2)),
        {"none": np.zeros((1, 0), np.float32)},
    ),
}

SIZES_FROM_INPUTS = {
    "the largest k": of(
        "(float[n, 6] x, int64[1] k) => (float[n, k] y, int64[n, k] at) "
        "{ y, at = TopK<axis=1>(x, k) }",
        each("k", [3], [1], [6], [0], x=drawn(0, 2, 6)),
    ),
    "a size to resize to": of(
        """(float[1, 2, 4, 4] x, int64[4] size) => (float[?, ?, ?, ?] y)
        { y = Resize<mode="linear">(x, , , size) }""",
        each("size", [1, 2, 8, 8], [1, 2, 3, 5], x=drawn(0, 1, 2, 4, 4)),
    ),
    "sizes to split into": of(
        """(float[n, 6] x, int64[2] sizes) => (float[n, ?] a, float[n, ?] b)
        { a, b = Split<axis=1>(x, sizes) }""",
        each("sizes", [2, 4], [0, 6], x=drawn(0, 2, 6)),
    ),
    "a shape to reshape to": of(
        "(float[n, 6] x, int64[2] shape) => (float[?, ?] y) { y = Reshape(x, shape) }",
        each("shape", [4, 3], [-1, 2], x=drawn(0, 2, 6)),
    ),
    "a range to an input": of(
        "(int64 n) => (int64[k] y) { r = Range(zero, n, one)  y = Mul(r, r) }",
        each("n", 5, 0),
        {"zero": 0, "one": 1},
    ),
    "pads from an input": of(
        "(float[n, 3] x, int64[4] pads) => (float[?, ?] y) { y = Pad(x, pads) }",
        each("pads", [0, 1, 1, 0], [0] * 4, x=drawn(0, 2, 3)),
    ),
    "a slice between inputs": of(
        "(float[n, 3] x, int64[1] begin, int64[1] end) => (float[?, 3] y) "
        "{ y = Slice(x, begin, end) }",
        [{"x": drawn(0, 4, 3), "begin": [b], "end": [e]} for b, e in ((0, 2), (1, 1))],
    ),
}

CONTENT_THAT_NOT_EVERY_VALUE_IS = {
    "a remainder by an input": of(
        "(int64[n] x, int64[n] d) => (int64[n] y) { y = Mod(x, d) }",
        [{"x": [7, -7, 5], "d": [3, 3, -2]}],
    ),
    "a quotient by an input": of(
        "(int32[n] x, int32[n] d) => (int32[n] y) { e = Sub(d, one)  y = Div(x, e) }",
        [{"x": narrow([7, -7, 5]), "d": narrow([4, 3, -2])}],
        {"one": np.int32(1)},
    ),
    "a decoder with lengths as inputs": of(
        """(float[b, s, 64] q, float[b, s, 32] k, float[b, s, 32] v, float[b, 2, p, 16] pk,
            float[b, 2, p, 16] pv, int32[b] lengths, int32[1] total)
        => (float[b, s, 64] y, float[b, 2, t, 16] k2, float[b, 2, t, 16] v2) {
          y, k2, v2 = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>
            (q, k, v, pk, pv, lengths, total) }""",
        [
            {
                "q": drawn(past, 1, 1, 64),
                **{name: drawn(past, 1, 1, 32) for name in "kv"},
                **{name: drawn(past, 1, 2, past, 16) for name in ("pk", "pv")},
                "lengths": narrow([past]),
                "total": narrow([past + 1]),
            }
            for past in (3, 5)
        ],
        shapes={"q": (1, 1, 64), "pk": (1, 2, 3, 16)},
    ),
    "a length of a sequence": of(
        """(float[5, b, 3] x, int32[b] lengths) => (float[5, 1, b, 4] y)
        { y = LSTM<hidden_size=4>(x, w, r, , lengths) }""",
        [{"x": drawn(2, 5, 2, 3), "lengths": narrow([5, 2])}],
        {"w": drawn(0, 1, 16, 3), "r": drawn(1, 1, 16, 4)},
    ),
    "noise like an input": of(
        "(float[n, 4] x) => (float[n, 4] y) { r = RandomNormalLike(x)  y = Add(x, r) }",
        each("x", drawn(0, 2, 4)),
        is_random=True,
    ),
    "draws": of(
        """(float[n, 4] x) => (float[n, 4] y, int32[n, 3] z)
        { y = Bernoulli(x)  z = Multinomial<sample_size=3>(x) }""",
        each("x", np.full((2, 4), 0.5, np.float32)),
        is_random=True,
    ),
    "dropout as in training": of(
        "(float[n, 4] x) => (float[n, 4] y) { y = Dropout(x, ratio, training) }",
        each("x", drawn(0, 2, 4)),
        {"ratio": np.float32(0.5), "training": True},
        is_random=True,
    ),
}


def four_bits(dtype: int, least: int, attributes: str, **constants: Any) -> Kind:
    values = np.random.default_rng(0).integers(least, least + 15, (8, 4))
    operands = ", ".join(["q", *constants])
    return of(
        f"""(float[b, 8] x) => (float[b, 4] y)
        {{ w = DequantizeLinear<{attributes}>({operands})  y = MatMul(x, w) }}""",
        each("x", drawn(2, 3, 8)),
        {"q": helper.make_tensor("q", dtype, [8, 4], values.ravel()), **constants},
        opset=21,
    )


def optimised() -> Kind:
    """A file that ONNX Runtime has optimised."""
    plain = parsed(
        """(float[n, 3, 16, 16] x) => (float[n, 16, 16, 16] y) {
          c = Conv<pads=[1, 1, 1, 1]>(x, a)  r = Relu(c)  y = Conv<pads=[1, 1, 1, 1]>(r, b) }""",
        {"a": drawn(0, 16, 3, 3, 3), "b": drawn(1, 16, 16, 3, 3)},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(plain.SerializeToString(), options)
        return Kind(path.read_bytes(), [{"x": drawn(2, 2, 3, 16, 16)}])


OF_ONNX_RUNTIMES_OWN = {
    "weights of four bits in blocks": four_bits(
        *(TensorProto.UINT4, 0, "axis=0, block_size=4"),
        scale=np.abs(drawn(1, 2, 4)),
        zero=helper.make_tensor("zero", TensorProto.UINT4, [2, 4], [8] * 8),
    ),
    "signed weights of four bits": four_bits(
        TensorProto.INT4, -8, "axis=1", scale=np.abs(drawn(1, 4))
    ),
    "a product of four bits": of(
        """(float[b, 32] x) => (float[b, 4] y)
        { y = com.microsoft.MatMulNBits<K=32, N=4, bits=4, block_size=32>(x, q, scale) }""",
        each("x", drawn(2, 3, 32)),
        {
            "q": np.random.default_rng(0).integers(0, 255, (4, 1, 16)).astype(np.uint8),
            "scale": np.abs(drawn(1, 4)),
        },
    ),
    "a file that ONNX Runtime optimised": optimised(),
}

KINDS: Mapping[str, Kind] = {
    **LENGTHS_BY_CONTENT,
    **NOTHING,
    **SIZES_FROM_INPUTS,
    **CONTENT_THAT_NOT_EVERY_VALUE_IS,
    **OF_ONNX_RUNTIMES_OWN,
}
