"""Which models give a request the same outputs with padding behind it, as the import finds out.

exact      pad, run, cut = what ONNX Runtime gives for the request alone
not exact  refused, whatever random trials would say
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from braid.core.errors import InvalidArtefact
from braid.core.inputs import GivenTensor
from braid.core.padding import BY_CONSTRUCTION, BY_TRIAL, MASK, PaddedAxis, cut, pad, takes
from braid.core.tensor import TensorType
from braid.engine.importer.host.report import read_report, report_from_json, report_to_json
from braid.engine.importer.padding.find import padded_axes
from braid.engine.importer.verification.reference import open_reference
from tests.engine.importer.running import import_here
from tests.engine.importer.test_rows_apart import studied

RNG = np.random.default_rng(0)
LOWEST = float(np.finfo(np.float32).min)
Array = np.ndarray[Any, Any]


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


WEIGHTS: Mapping[str, Any] = {
    **{name: real(8, 8) / 2 for name in ("wq", "wk", "wv", "wo")},
    "words": real(50, 8),
    "places": real(64, 8),
    "near": real(17, 1),
    "scale": real(8),
    "bias": real(8),
    "taps": real(8, 8, 3),
    "tap": real(8, 8, 1),
    "lstm_w": real(1, 32, 8),
    "lstm_r": real(1, 32, 8),
    **{
        name: np.array(number) for name, number in (("zero", 0), ("one", 1), ("two", 2), ("pad", 1))
    },
    **{f"i{n}": np.array([n]) for n in (0, 1, 2)},
    "before": np.array([-1]),
    "far": np.array([-(2**62)]),
    "after": np.array([2**62]),
    "lead": real(1, 1, 8),
    "limit": np.array(64),
    "minus": np.array(-1),
    "hundred": np.float32(100),
    "thousands": np.float32(9000),
    "joined": np.array([-1, 8]),
    "halves": np.array([0, 0, 2, 4]),
    "whole": np.array([0, 0, 8]),
    "lowest": np.float32(LOWEST),
    "low": np.float32(-10000),
    "weak": np.float32(-5),
    "eight": np.array(8),
    "minus_eight": np.array(-8),
    "nothing": np.float32(0),
    "unit": np.float32(1),
    "tiny": np.float32(1e-9),
    "count": np.array([2]),
    "flat": np.array([-1, 48]),
    "gemm": real(48, 4),
}

ATTEND = """
    q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)
    kt = Transpose <perm: ints = [0, 2, 1]> (k)
    raw = MatMul (q, kt)
"""
MASKED = """
    kept = Cast <to: int = 1> (mask)
    inverse = Sub (unit, kept)
    wide = Unsqueeze (inverse, i1)
"""
ANSWER = """
    odds = Softmax <axis: int = -1> (scores)
    seen = MatMul (odds, v)
    added = Add (x, seen)
    y = LayerNormalization <axis: int = -1> (added, scale, bias)
"""
ATTENTION = ATTEND + MASKED + "penalty = Mul (wide, lowest) scores = Add (raw, penalty)" + ANSWER
LENGTH = "shape = Shape (x)  length = Gather (shape, one)"
CAUSAL = (
    LENGTH
    + """
    steps = Range (zero, length, one)
    rows = Unsqueeze (steps, i1)  columns = Unsqueeze (steps, i0)
    future = Less (rows, columns)
"""
)


def drawn(body: str, inputs: str, outputs: str) -> onnx.ModelProto:
    """A model of one graph: what it reads of ``WEIGHTS`` become its constants."""
    lines = f"<ir_version: 8, opset_import: ['' : 17]> drawn ({inputs}) => ({outputs}) {{ {body} }}"
    made = onnx.parser.parse_model(lines.replace("'", '"'))
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name)
        for name, array in WEIGHTS.items()
        if name in read
    )
    return made


X = "float[b, s, 8] x"
XM = f"{X}, int64[b, s] mask"
IDS = "int64[b, s] ids"
IM = f"{IDS}, int64[b, s] mask"
ROWS = "float[b, s, 8] y"
ONE = "float[b, 8] y"


def axis_of(made: onnx.ModelProto, folder: Path) -> PaddedAxis:
    """The verdict about the axis "s"."""
    study = studied(made, folder)
    reference = open_reference(folder / "upload")
    verdicts = padded_axes(study.subject, study.batch, reference)
    (axis,) = [verdict for verdict in verdicts if verdict.axis == "s"]
    return axis


INEXACT: Mapping[str, tuple[str, str, str]] = {
    "mean over the axis": ("y = ReduceMean <axes: ints = [1], keepdims: int = 0> (x)", X, ONE),
    "statistics of the axis": (
        "m = ReduceMean <axes: ints = [1]> (x) c = Sub (x, m) d = Mul (c, c) "
        "v = ReduceMean <axes: ints = [1]> (d) r = Sqrt (v) y = Div (c, r)", X, ROWS),
    "statistics of the batch": (
        "m = ReduceMean <axes: ints = [0, 1]> (x) y = Sub (x, m)", X, ROWS),
    "mean variance": ("y = MeanVarianceNormalization <axes: ints = [1]> (x)", X, ROWS),
    "norm along the axis": ("y = LpNormalization <axis: int = 1> (x)", X, ROWS),
    "reversed": ("y = Slice (x, before, far, i1, before)", X, ROWS),
    "last position": ("last = Gather <axis: int = 1> (x, minus) y = Identity (last)", X, ONE),
    "position of the largest": ("y = ArgMax <axis: int = 1, keepdims: int = 0> (x)", X,
                                "int64[b, 8] y"),
    "largest two": ("y, at = TopK <axis: int = 1> (x, count)", X, "float[b, t, 8] y"),
    "largest": ("y = ReduceMax <axes: ints = [1], keepdims: int = 0> (x)", X, ONE),
    "largest of ids": (
        "e = Gather (words, ids) y = ReduceMax <axes: ints = [1], keepdims: int = 0> (e)",
        IDS, ONE),
    "max pooling": (
        "t = Transpose <perm: ints = [0, 2, 1]> (x) p = GlobalMaxPool (t) y = Squeeze (p, i2)",
        X, ONE),
    "sum": ("b = Add (x, bias) y = ReduceSum <keepdims: int = 0> (b, i1)", X, ONE),
    "LSTM": (
        "t = Transpose <perm: ints = [1, 0, 2]> (x) a, h = LSTM <hidden_size: int = 8> "
        "(t, lstm_w, lstm_r) y = Squeeze (h, i0)", X, ONE),
    "convolution over time": (
        "t = Transpose <perm: ints = [0, 2, 1]> (x) "
        "c = Conv <pads: ints = [1, 1], kernel_shape: ints = [3]> (t, taps) "
        "y = Transpose <perm: ints = [0, 2, 1]> (c)", X, ROWS),
    "softmax without mask": (ATTEND + "scores = Identity (raw)" + ANSWER, X, ROWS),
    "softmax of positions": ("y = Softmax <axis: int = 1> (x)", X, ROWS),
    "mask multiplied before softmax": (
        ATTEND + "kept = Cast <to: int = 1> (mask) wide = Unsqueeze (kept, i1) "
        "scores = Mul (raw, wide)" + ANSWER, XM, ROWS),
    "mask that hides little": (
        ATTEND + MASKED + "penalty = Mul (wide, weak) scores = Add (raw, penalty)" + ANSWER,
        XM, ROWS),
    "mask whose ones hide": (
        ATTEND + "hide = Cast <to: int = 1> (mask) wide = Unsqueeze (hide, i1) "
        "penalty = Mul (wide, lowest) scores = Add (raw, penalty)" + ANSWER, XM, ROWS),
    "mask of another layer only": (
        ATTENTION.replace("y = Layer", "z = Layer")
        + "y = ReduceMax <axes: ints = [1], keepdims: int = 0> (z)", XM, ONE),
    "masked sum over all positions": (
        "kept = Cast <to: int = 1> (mask) wide = Unsqueeze (kept, i2) z = Mul (x, wide) "
        "y = ReduceMean <axes: ints = [1], keepdims: int = 0> (z)", XM, ONE),
    "divided by the length": (
        LENGTH + " number = Cast <to: int = 1> (length) y = Div (x, number)", X, ROWS),
    "other beyond a length": (
        LENGTH + " longer = Greater (length, limit) double = Add (x, x) "
        "y = Where (longer, x, double)", X, ROWS),
    "length at most": (
        LENGTH + " most = Min (length, limit) number = Cast <to: int = 1> (most) "
        "y = Mul (x, number)", X, ROWS),
    "positions from the end": (
        LENGTH + " steps = Range (zero, length, one) back = Sub (length, steps) "
        "number = Cast <to: int = 1> (back) wide = Unsqueeze (number, i1) y = Mul (x, wide)",
        X, ROWS),
    "running sum from the end": (
        "b = Add (x, bias) y = CumSum <reverse: int = 1> (b, one)", X, ROWS),
    "behind the end": (
        "first = Slice (x, i0, i1, i1) y = Concat <axis: int = 1> (x, first)", X,
        "float[b, t, 8] y"),
    "softmax of batch and length as one": (
        "xf = Reshape (x, joined) o = Softmax <axis: int = 0> (xf) shape = Shape (x) "
        "y = Reshape (o, shape)", X, ROWS),
    "maximum of batch and length as one": (
        "xf = Reshape (x, joined) o = ReduceMax <axes: ints = [0]> (xf) y = Add (x, o)", X, ROWS),
    "sum of batch and length as one": (
        "xf = Reshape (x, joined) o = CumSum (xf, zero) shape = Shape (x) "
        "y = Reshape (o, shape)", X, ROWS),
    "length and batch as one": (
        "t = Transpose <perm: ints = [1, 0, 2]> (x) xf = Reshape (t, joined) shape = Shape (x) "
        "y = Reshape (xf, shape)", X, ROWS),
    "other in large batches": (
        "shape = Shape (x) rows = Gather (shape, zero) large = Greater (rows, limit) "
        "m = ReduceMax <axes: ints = [1]> (x) y = Where (large, m, x)", X, ROWS),
    "a mean in large batches": (
        ATTEND + "shape = Shape (x) rows = Gather (shape, zero) size = Cast <to: int = 1> (rows) "
        + MASKED + " strength = Sub (size, hundred) high = Mul (wide, strength) "
        "penalty = Mul (high, hundred) scores = Add (raw, penalty)" + ANSWER, XM, ROWS),
    "one position fewer": ("y = Slice (x, i1, after, i1)", X, "float[b, t, 8] y"),
    "one position more": ("y = Concat <axis: int = 1> (lead, x)", "float[1, s, 8] x",
                          "float[1, t, 8] y"),
    "only one length": (
        "f = Flatten (x) r = Reshape (f, flat) y = MatMul (r, gemm)", X, "float[b, 4] y"),
    "window of the future": (
        CAUSAL.replace("Less (rows, columns)", "Less (shifted, columns)").replace(
            "future =", "shifted = Add (rows, one) future =")
        + ATTEND + "scores = Where (future, lowest, raw)" + ANSWER, X, ROWS),
    "threshold on a rare maximum": (
        "m = ReduceMax <axes: ints = [1, 2], keepdims: int = 1> (x) "
        "rare = Greater (m, hundred) number = Cast <to: int = 1> (rare) y = Add (x, number)",
        X, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", INEXACT)
def test_a_model_that_padding_changes_is_not_padded(name: str, tmp_path: Path) -> None:
    axis = axis_of(drawn(*INEXACT[name]), tmp_path)

    assert not axis.exact
    assert axis.reason


EMBEDDED = "x = Gather (words, ids) "
EXACT: Mapping[str, tuple[str, str, str]] = {
    "rows of their own": (
        "h = MatMul (x, wq) a = Relu (h) n = LayerNormalization <axis: int = -1> (a, scale, bias) "
        "y = Add (n, bias)", X, ROWS),
    "a kernel of one position": (
        "t = Transpose <perm: ints = [0, 2, 1]> (x) c = Conv <kernel_shape: ints = [1]> (t, tap) "
        "y = Transpose <perm: ints = [0, 2, 1]> (c)", X, ROWS),
    "attention with an added mask": (ATTENTION, XM, ROWS),
    "attention with a chosen mask": (
        ATTEND + "hide = Equal (mask, zero) wide = Unsqueeze (hide, i1) "
        "scores = Where (wide, lowest, raw)" + ANSWER, XM, ROWS),
    "causal attention": (
        CAUSAL + ATTEND + "scores = Where (future, lowest, raw)" + ANSWER, X, ROWS),
    "causal attention with a mask": (
        CAUSAL + ATTEND + "hide = Equal (mask, zero) wide = Unsqueeze (hide, i1) "
        "either = Or (future, wide) scores = Where (either, lowest, raw)" + ANSWER, XM, ROWS),
    "positions from the shape": (
        EMBEDDED + LENGTH + " l = Unsqueeze (length, i0) p = Slice (places, i0, l, i0) "
        + ATTENTION.replace("MatMul (x,", "MatMul (xp,").replace("Add (x,", "Add (xp,").replace(
            "q =", "xp = Add (x, p) q ="), IM, ROWS),
    "positions counted from tokens": (
        EMBEDDED + "same = Equal (ids, pad) other = Not (same) "
        "counted = Cast <to: int = 7> (other) "
        "sums = CumSum (counted, one) at = Mul (sums, counted) p = Gather (places, at) "
        + ATTENTION.replace("MatMul (x,", "MatMul (xp,").replace("Add (x,", "Add (xp,").replace(
            "q =", "xp = Add (x, p) q ="), IM, ROWS),
    "relative positions": (
        CAUSAL + "gap = Sub (rows, columns) most = Min (gap, eight) "
        "least = Max (most, minus_eight) "
        "at = Add (least, eight) b1 = Gather (near, at) bias2 = Squeeze (b1, i2) "
        + ATTENTION.replace("raw =", "bare =").replace("wide =", "raw = Add (bare, bias2) wide ="),
        XM, ROWS),
    "masked mean": (
        ATTENTION.replace("y = Layer", "z = Layer")
        + "w2 = Unsqueeze (kept, i2) zm = Mul (z, w2) "
        "total = ReduceSum <keepdims: int = 0> (zm, i1) "
        "n = ReduceSum <keepdims: int = 0> (w2, i1) n1 = Max (n, tiny) y = Div (total, n1)",
        XM, ONE),
    "masked maximum": (
        "hide = Equal (mask, zero) wide = Unsqueeze (hide, i2) z = Where (wide, lowest, x) "
        "y = ReduceMax <axes: ints = [1], keepdims: int = 0> (z)", XM, ONE),
    "first position": (
        ATTENTION.replace("y = Layer", "z = Layer") + "y = Gather <axis: int = 1> (z, zero)",
        XM, ONE),
    "running sum": ("y = CumSum (x, one)", X, ROWS),
    "running sum of zeros from the end": ("y = CumSum <reverse: int = 1> (x, one)", X, ROWS),
    "sum of zeros": ("y = ReduceSum <keepdims: int = 0> (x, i1)", X, ONE),
    "batch and length as one": (
        ATTENTION.replace(
            "q = MatMul (x, wq)",
            "xf = Reshape (x, joined) qf = MatMul (xf, wq) qb = Add (qf, bias) "
            "shape = Shape (x) q = Reshape (qb, shape)",
        ), XM, ROWS),
    "heads": (
        ATTENTION.replace(
            "q = MatMul (x, wq)",
            "qa = MatMul (x, wq) qb = Reshape (qa, halves) q = Reshape (qb, whole)",
        ), XM, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_a_model_that_padding_does_not_change_is_padded(name: str, tmp_path: Path) -> None:
    made = drawn(*EXACT[name])
    axis = axis_of(made, tmp_path)

    assert axis.exact, axis.reason
    assert axis.shown_by == BY_CONSTRUCTION
    assert axis.up_to >= 64
    compare_with_the_requests_alone(made, axis)


def compare_with_the_requests_alone(made: onnx.ModelProto, axis: PaddedAxis) -> None:
    """Random requests of random lengths, padded by random amounts, against ONNX Runtime."""
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for trial in range(12):
        length = int(RNG.integers(1, 40))
        to = length + int(RNG.choice([1, 2, 24]))
        rows = int(RNG.integers(1, 4))
        request = {spec.name: content(spec, rows, length, trial) for spec in session.get_inputs()}
        tensors = [given(name, array) for name, array in request.items()]
        assert takes(tensors, axis)
        padded = {tensor.name: array_of(tensor) for tensor in pad(tensors, axis, to)}
        expected = session.run(None, request)
        got = session.run(None, padded)
        names = [output.name for output in session.get_outputs()]
        shaped = {
            name: (TensorType("FP32", array.shape), array.tobytes())
            for name, array in zip(names, got, strict=True)
        }
        for name, wanted in zip(names, expected, strict=True):
            spec, data = cut(shaped, axis, length)[name]
            back = np.frombuffer(data, np.float32).reshape([int(dim) for dim in spec.shape])
            np.testing.assert_allclose(back, wanted, rtol=1e-4, atol=1e-4)


DTYPES = {"float32": "FP32", "int64": "INT64"}


def content(spec: Any, rows: int, length: int, trial: int) -> Array:
    shape = [{"b": rows, "s": length}.get(dim, dim) for dim in spec.shape]
    if spec.name == "mask":
        mask = RNG.integers(0, 2, shape) if trial % 2 else np.ones(shape, np.int64)
        mask[:, 0] = 1
        return mask
    return RNG.integers(0, 50, shape) if "int" in spec.type else 3 * real(*shape)


def given(name: str, array: Array) -> GivenTensor:
    return GivenTensor(name, DTYPES[str(array.dtype)], array.shape, array.tobytes())


def array_of(tensor: GivenTensor) -> Array:
    kind = {dtype: name for name, dtype in DTYPES.items()}[tensor.dtype]
    return np.frombuffer(bytes(tensor.data), kind).reshape(tensor.shape)


def test_a_mask_is_padded_as_a_mask_and_only_where_it_is_needed(tmp_path: Path) -> None:
    masked = axis_of(drawn(*EXACT["attention with an added mask"]), tmp_path)
    free = axis_of(drawn(*EXACT["rows of their own"]), tmp_path)

    assert masked.inputs["mask"].way == MASK
    assert masked.inputs["x"].way != MASK
    assert free.inputs["x"].way != MASK
    assert masked.outputs == free.outputs == {"y": 1}


def test_a_mask_of_ten_thousand_is_confirmed_by_trial(tmp_path: Path) -> None:
    """Scores that large are possible, so construction does not show it for all content."""
    body, *specs = EXACT["attention with an added mask"]
    axis = axis_of(drawn(body.replace("lowest", "low"), *specs), tmp_path)

    assert axis.exact
    assert axis.shown_by == BY_TRIAL


def test_scores_that_outweigh_the_mask_are_found_by_trial(tmp_path: Path) -> None:
    body, *specs = EXACT["attention with an added mask"]
    louder = (
        body.replace("lowest", "low")
        .replace("scores =", "louder = Mul (raw, thousands) scores =")
        .replace("Add (raw, penalty)", "Add (louder, penalty)")
    )
    made = drawn(louder, *specs)

    axis = axis_of(made, tmp_path)

    assert not axis.exact
    assert "trial" in axis.reason


def test_the_reason_names_the_operator(tmp_path: Path) -> None:
    axis = axis_of(drawn(*INEXACT["convolution over time"]), tmp_path)

    assert "convolution" in axis.reason


def test_errors_of_axes_that_are_not_exact_are_measured(tmp_path: Path) -> None:
    """Who asks for padding all the same hears what it costs."""
    mean = axis_of(drawn(*INEXACT["mean over the axis"]), tmp_path)
    largest = axis_of(drawn(*INEXACT["largest"]), tmp_path)

    assert mean.tried["zeros"] > 0.1
    assert mean.tried["repeat"] > 0.01
    assert largest.tried["zeros"] > 0.01
    assert largest.tried["repeat"] == 0  # true, though construction does not show it


def test_the_report_of_an_import_says_it(tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(drawn(*EXACT["masked mean"]).SerializeToString())

    report = read_report(import_here(upload, tmp_path / "artefact"))

    (axis,) = report.padding
    assert axis.exact
    assert axis.axis == "s"
    assert axis.outputs == {}
    assert axis.error <= report.verified.tolerance


def test_a_report_of_a_version_that_is_too_old_is_refused(tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(drawn(*EXACT["rows of their own"]).SerializeToString())
    document = report_to_json(read_report(import_here(upload, tmp_path / "artefact")))

    del document["padding"]

    with pytest.raises(InvalidArtefact, match=r"too old .*missing padding\); register .* again"):
        report_from_json(document)
