"""Which models give a request the same outputs with padding behind it, as trials find out.

exact      if asked for: pad, run, cut = what ONNX Runtime gives for the request alone
not exact  refused to who asks for it
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from braid.core.errors import InvalidArtefact, InvalidRequest
from braid.core.inputs import GivenTensor
from braid.core.padding import MASK, ZEROS, PaddedAxis, as_asked, cut, pad, takes
from braid.core.tensor import TensorType
from braid.engine.importer.host.report import read_report, report_from_json, report_to_json
from braid.engine.importer.padding import padded_axes
from braid.engine.importer.verification.reference import open_reference
from braid.engine.importer.verification.verify import TOLERANCE
from tests.engine.importer.running import import_here, studied
from tests.models.graphs import parsed

RNG = np.random.default_rng(0)
LOWEST = float(np.finfo(np.float32).min)
Array = np.ndarray[Any, Any]


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


WEIGHTS: Mapping[str, Any] = {
    **{name: real(8, 8) / 2 for name in ("wq", "wk", "wv", "wo")},
    "words": real(50, 8),
    "places": real(64, 8),
    "scale": real(8),
    "bias": real(8),
    "lstm_w": real(1, 32, 8),
    "lstm_r": real(1, 32, 8),
    **{name: np.array(number) for name, number in (("zero", 0), ("one", 1), ("pad", 1))},
    **{f"i{n}": np.array([n]) for n in (0, 1, 2)},
    "before": np.array([-1]),
    "far": np.array([-(2**62)]),
    "after": np.array([2**62]),
    "minus": np.array(-1),
    "lowest": np.float32(LOWEST),
    "weak": np.float32(-5),
    "unit": np.float32(1),
    "tiny": np.float32(1e-9),
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
    read = {*re.findall(r"\w+", body)}
    constants = {name: array for name, array in WEIGHTS.items() if name in read}
    return parsed(f"({inputs}) => ({outputs}) {{ {body} }}", constants)


X = "float[b, s, 8] x"
XM = f"{X}, int64[b, s] mask"
IDS = "int64[b, s] ids"
IM = f"{IDS}, int64[b, s] mask"
ROWS = "float[b, s, 8] y"
ONE = "float[b, 8] y"


LARGEST = ("y = ReduceMax <axes: ints = [1], keepdims: int = 0> (x)", X, ONE)


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
    "reversed": ("y = Slice (x, before, far, i1, before)", X, ROWS),
    "last position": ("last = Gather <axis: int = 1> (x, minus) y = Identity (last)", X, ONE),
    "LSTM": (
        "t = Transpose <perm: ints = [1, 0, 2]> (x) a, h = LSTM <hidden_size: int = 8> "
        "(t, lstm_w, lstm_r) y = Squeeze (h, i0)", X, ONE),
    "softmax without mask": (ATTEND + "scores = Identity (raw)" + ANSWER, X, ROWS),
    "mask that hides little": (
        ATTEND + MASKED + "penalty = Mul (wide, weak) scores = Add (raw, penalty)" + ANSWER,
        XM, ROWS),
    "mask whose ones hide": (
        ATTEND + "hide = Cast <to: int = 1> (mask) wide = Unsqueeze (hide, i1) "
        "penalty = Mul (wide, lowest) scores = Add (raw, penalty)" + ANSWER, XM, ROWS),
    "masked sum over all positions": (
        "kept = Cast <to: int = 1> (mask) wide = Unsqueeze (kept, i2) z = Mul (x, wide) "
        "y = ReduceMean <axes: ints = [1], keepdims: int = 0> (z)", XM, ONE),
    "divided by the length": (
        LENGTH + " number = Cast <to: int = 1> (length) y = Div (x, number)", X, ROWS),
    "one position fewer": ("y = Slice (x, i1, after, i1)", X, "float[b, t, 8] y"),
    "only one length": (
        "f = Flatten (x) r = Reshape (f, flat) y = MatMul (r, gemm)", X, "float[b, 4] y"),
}  # fmt: skip


@pytest.mark.parametrize("name", INEXACT)
def test_padding_that_changes_a_model_is_refused_to_who_asks_for_it(
    name: str, tmp_path: Path
) -> None:
    axis = axis_of(drawn(*INEXACT[name]), tmp_path)

    with pytest.raises(InvalidRequest, match=r"an error of|ran in no trial"):
        as_asked([axis], {"s": ZEROS}, TOLERANCE, is_forbidden=False)
    assert not axis.exact
    assert axis.reason


EMBEDDED = "x = Gather (words, ids) "
EXACT: Mapping[str, tuple[str, str, str]] = {
    "rows of their own": (
        "h = MatMul (x, wq) a = Relu (h) n = LayerNormalization <axis: int = -1> (a, scale, bias) "
        "y = Add (n, bias)", X, ROWS),
    "attention with an added mask": (ATTENTION, XM, ROWS),
    "attention with a chosen mask": (
        ATTEND + "hide = Equal (mask, zero) wide = Unsqueeze (hide, i1) "
        "scores = Where (wide, lowest, raw)" + ANSWER, XM, ROWS),
    "causal attention with a mask": (
        CAUSAL + ATTEND + "hide = Equal (mask, zero) wide = Unsqueeze (hide, i1) "
        "either = Or (future, wide) scores = Where (either, lowest, raw)" + ANSWER, XM, ROWS),
    "positions counted from tokens": (
        EMBEDDED + "same = Equal (ids, pad) other = Not (same) "
        "counted = Cast <to: int = 7> (other) "
        "sums = CumSum (counted, one) at = Mul (sums, counted) p = Gather (places, at) "
        + ATTENTION.replace("MatMul (x,", "MatMul (xp,").replace("Add (x,", "Add (xp,").replace(
            "q =", "xp = Add (x, p) q ="), IM, ROWS),
    "masked mean": (
        ATTENTION.replace("y = Layer", "z = Layer")
        + "w2 = Unsqueeze (kept, i2) zm = Mul (z, w2) "
        "total = ReduceSum <keepdims: int = 0> (zm, i1) "
        "n = ReduceSum <keepdims: int = 0> (w2, i1) n1 = Max (n, tiny) y = Div (total, n1)",
        XM, ONE),
    "first position": (
        ATTENTION.replace("y = Layer", "z = Layer") + "y = Gather <axis: int = 1> (z, zero)",
        XM, ONE),
    "sum of zeros": ("y = ReduceSum <keepdims: int = 0> (x, i1)", X, ONE),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_padding_that_changes_nothing_is_left_to_who_asks_for_it(name: str, tmp_path: Path) -> None:
    made = drawn(*EXACT[name])
    axis = axis_of(made, tmp_path)
    (asked,) = as_asked([axis], {"s": ZEROS}, TOLERANCE, is_forbidden=False)

    assert not axis.exact
    assert asked.exact
    assert asked.up_to >= 64
    compare_with_the_requests_alone(made, asked)


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


@pytest.mark.parametrize(
    ("name", "is_masked"),
    [
        ("attention with an added mask", True),
        ("causal attention with a mask", True),
        ("attention with a chosen mask", True),
        ("sum of zeros", False),
        ("mask that hides little", False),
        ("rows of their own", False),
    ],
)
def test_an_input_is_a_mask_if_padding_is_exact_where_it_begins_with_ones_only(
    name: str, is_masked: bool, tmp_path: Path
) -> None:
    axis = axis_of(drawn(*{**EXACT, **INEXACT}[name]), tmp_path)

    masks = [name for name, part in axis.inputs.items() if part.way == MASK]
    assert masks == (["mask"] if is_masked else [])


def test_the_error_of_each_way_is_measured(tmp_path: Path) -> None:
    mean = axis_of(drawn(*INEXACT["mean over the axis"]), tmp_path)
    largest = axis_of(drawn(*LARGEST), tmp_path)

    assert mean.tried["zeros"] > 0.1
    assert mean.tried["repeat"] > 0.01
    assert largest.tried["zeros"] > 0.01
    assert largest.tried["repeat"] == 0


def test_the_report_of_an_import_says_it(tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(drawn(*EXACT["masked mean"]).SerializeToString())

    report = read_report(import_here(upload, tmp_path / "artefact"))

    (axis,) = report.padding
    assert (axis.axis, axis.outputs) == ("s", {})
    assert axis.tried["zeros"] <= report.verified.tolerance


def test_a_report_of_a_version_that_is_too_old_is_refused(tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(drawn(*EXACT["rows of their own"]).SerializeToString())
    document = report_to_json(read_report(import_here(upload, tmp_path / "artefact")))

    del document["padding"]

    with pytest.raises(InvalidArtefact, match=r"too old .*missing padding\); register .* again"):
        report_from_json(document)
