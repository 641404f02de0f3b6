"""What the table does not cover: served by ONNX Runtime as one unit, or refused with reasons."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from braid.core.errors import InvalidRequest, RunStopped, UnsupportedOperators
from braid.core.plan import sequential_plan
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.artefact import load_artefact
from braid.engine.importer.upload.whole_model import as_one_unit
from braid.engine.onnx.plain import without_dictionaries
from braid.engine.ops import whole
from braid.engine.ops.whole import KIND, WholeModel, run_named, run_whole_model, whole_graph
from braid.engine.passes.specialise import specialise
from braid.engine.program.kernel import PackedWeights
from braid.engine.runtime.yielding import no_pause
from tests import ROOT
from tests.engine.importer.running import computed, import_here, imported
from tests.engine.onnx.oracle import through_onnxruntime
from tests.models import strings
from tests.models.graphs import from_x, model, parsed

LOOP = """y = Loop<body = turn (int64 i, bool go, float[] v) => (bool go_on, float[] u)
  { go_on = Identity(go)  u = Add(v, w) }>(trips, , x)"""
WEIGHT = np.arange(4, dtype=np.float32)


def loop(trips: int) -> onnx.ModelProto:
    return from_x(LOOP, w=WEIGHT, trips=trips)


def loop_by_content() -> onnx.ModelProto:
    """As often as the first element says."""
    count = """row = Gather(x, zero)  count = Gather(row, zero)  size = Abs(count)
    trips = Cast<to=7>(size)"""
    return from_x(f"{count} {LOOP}", w=WEIGHT, zero=0)


SERVED: dict[str, Callable[[], onnx.ModelProto]] = {
    "loop": lambda: loop(3),
    "on content": lambda: from_x(
        """most = ReduceMax<keepdims=0>(x)  bright = Greater(most, one)
        y = If<then_branch = yes () => (float[] a) { a = Relu(x) },
               else_branch = no () => (float[] b) { b = Neg(x) }>(bright)""",
        one=np.float32(1),
    ),
    "sequences": lambda: from_x("s = SequenceConstruct(x, x)  y = ConcatFromSequence<axis=1>(s)"),
    "contributed": lambda: from_x("y = com.microsoft.QuickGelu(x)"),
}


def classifier_of_tables(nodes: int) -> onnx.ModelProto:
    """What converters of scikit-learn write: operators of ai.onnx.ml, of ONNX's own no set."""
    chain = [
        helper.make_node(
            "Scaler", [f"x{at}" if at else "x"], [f"x{at + 1}" if at + 1 < nodes else "y"],
            domain="ai.onnx.ml", offset=[0.0] * 4, scale=[2.0] * 4,
        )
        for at in range(nodes)
    ]  # fmt: skip
    made = model(chain)
    del made.opset_import[:]
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made


async def test_what_is_usual_for_files_of_scikit_learn_is_one_short_note(tmp_path: Path) -> None:
    artefact = load_artefact(await imported(classifier_of_tables(40), tmp_path))

    (note,) = artefact.report.warnings
    assert note.startswith("served whole by ONNX Runtime: Scaler (")
    assert note.endswith("; and 39 more")
    assert len(note) < 200


async def test_operators_beside_those_of_onnx_are_no_reason_to_call_a_file_not_valid(
    tmp_path: Path,
) -> None:
    made = from_x("y = Relu(x)")
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(made)

    assert load_artefact(await imported(made, tmp_path)).report.warnings == ()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "loop" else [pytest.mark.slow]) for n in SERVED]
)
async def test_it_is_served_whole_and_answers_like_onnxruntime(name: str, tmp_path: Path) -> None:
    made = SERVED[name]()

    # Nothing shows what a sequence does to rows.
    is_stated = name == "sequences"
    artefact = load_artefact(await imported(made, tmp_path, batchable=is_stated))

    assert [op.kind for op in artefact.graph.operators] == [KIND]
    assert any("served whole by ONNX Runtime" in text for text in artefact.report.warnings)
    batches = (1, 3, 8) if artefact.report.batch else (1,)
    assert (len(batches) == 1) == (name == "on content")  # there, rows decide for each other
    for batch in batches:
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
        (found,) = computed(artefact, {"x": x}).values()
        np.testing.assert_allclose(found, through_onnxruntime(made, {"x": x})["y"], rtol=1e-5)


def text_chooses_rows() -> bytes:
    """Strings that are stop words are left out."""
    kept = """(string[n] x) => (string[m] y)
    { y = StringNormalizer<stopwords=["a"], locale="C">(x) }"""
    return strings.of_strings(kept).SerializeToString()


def positions() -> bytes:
    """As many results as the image has bright pixels, and a loop."""
    made = loop(2)
    made.graph.node.append(helper.make_node("NonZero", ["y"], ["places"]))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("places", TensorProto.INT64, None))
    return made.SerializeToString()


@pytest.mark.parametrize("build", [text_chooses_rows, positions])
def test_content_may_decide_a_shape(build: Callable[[], bytes], tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(build())
    artefact = load_artefact(import_here(tmp_path / "upload", tmp_path / "artefact"))

    (unit,) = artefact.graph.operators
    assert unit.attributes["follows_content"]
    assert artefact.report.batch is None


@pytest.mark.parametrize("rows", ["n", "?"])
async def test_strings_are_checked_with_words_that_the_model_knows(
    rows: str, tmp_path: Path
) -> None:
    artefact = load_artefact(await imported(strings.labels(rows), tmp_path))

    assert artefact.graph.inputs["colour"].dtype == "BYTES"
    assert artefact.graph.spec(artefact.graph.outputs["label"]).dtype == "BYTES"
    assert artefact.report.batch is not None
    assert artefact.report.verified.batches == (1, 3, 5)
    assert not any("do not depend" in each for each in artefact.report.warnings)


def test_a_locale_that_the_machine_lacks_is_named() -> None:
    made = strings.word_counts()
    for attribute in made.graph.node[0].attribute:
        if attribute.name == "locale":
            attribute.s = b"xx_XX.UTF-8"

    with pytest.raises(UnsupportedOperators, match=r"needs the locale xx_XX\.UTF-8"):
        as_one_unit(made, (), pytest.fail, {})


def foreign() -> bytes:
    return from_x("a = own.Explode(x)  y = Unique(a)").SerializeToString()


async def test_it_is_refused_with_all_reasons_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperators) as caught:
        await imported(foreign(), tmp_path)

    for reason in ("custom domain 'own'", "Unique", "none is loaded"):
        assert reason in str(caught.value)


def classifier(opsets: list[onnx.OperatorSetIdProto]) -> onnx.ModelProto:
    """Labels and dictionaries of scores, as scikit-learn's classifiers are exported by default."""
    ml = "ai.onnx.ml"
    lines: dict[str, Any] = {
        "coefficients": [1.0, -2.0, 0.5, 3.0] * 3,
        "intercepts": [0.1, 0.2, 0.3],
        "classlabels_ints": [3, 5, 8],
    }
    scored = helper.make_node("LinearClassifier", ["x"], ["y", "s"], domain=ml, **lines)
    zipped = helper.make_node("ZipMap", ["s"], ["p"], domain=ml, classlabels_int64s=[3, 5, 8])
    made = model([scored, zipped])
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    rows = helper.make_map_type_proto(TensorProto.INT64, number)
    made.graph.output.append(helper.make_value_info("p", helper.make_sequence_type_proto(rows)))
    del made.opset_import[:]
    made.opset_import.extend([*opsets, helper.make_opsetid(ml, 1)])
    return made


@pytest.mark.parametrize("opsets", [[], [helper.make_opsetid("", 17)]], ids=["none", "17"])
async def test_dictionaries_of_classes_are_served_as_tensors(
    opsets: list[onnx.OperatorSetIdProto], tmp_path: Path
) -> None:
    data = classifier(opsets).SerializeToString()
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    labels, dictionaries = onnxruntime.InferenceSession(data).run(None, {"x": x})

    artefact = load_artefact(await imported(data, tmp_path))
    answers = computed(artefact, {"x": x})

    np.testing.assert_array_equal(answers["y"], labels)
    scores = [list(row.values()) for row in dictionaries]
    np.testing.assert_allclose(answers["p"], scores, rtol=1e-6)
    assert [list(row) for row in dictionaries] == [[3, 5, 8]] * 3
    assert any("classes 3, 5, 8" in text for text in artefact.report.warnings)


@pytest.mark.parametrize("keys", [5, [1.0, 2.0], ["a" * 10_000] * 3])
def test_a_map_with_odd_keys_makes_a_short_remark(keys: Any) -> None:
    made = classifier([helper.make_opsetid("", 17)])
    del made.graph.node[1].attribute[:]
    made.graph.node[1].attribute.append(helper.make_attribute("classlabels_strings", keys))
    made.graph.node.add(op_type="ZipMap", domain="ai.onnx.ml")  # makes nothing

    assert 0 < len(without_dictionaries(made)) < 500


def test_a_loop_over_run_time_values_is_ended() -> None:
    data = torch.frombuffer(bytearray(loop_by_content().SerializeToString()), dtype=torch.uint8)
    whole = WholeModel(["x"], ["y"], [["n", 4]], [["n", 4]], ["FP32"], loops=True)
    endless = torch.full((1, 4), 1e18)

    with pytest.raises(RunStopped, match=r"ONNX Runtime was ended after 0\.5 s"):
        run_whole_model(data, [endless], whole, 0.5)

    few = run_whole_model(data, [torch.full((1, 4), 2.0)], whole, 600.0)[0]
    assert few.tolist() == [[2.0, 4.0, 6.0, 8.0]]


HUNGRY = """
import numpy as np
import torch
from braid.engine.ops.whole import open_session
from tests.models.graphs import from_x

data = from_x(
    "s = Shape(x)  shape = Mul(s, many)  large = ConstantOfShape(shape) "
    "sum = ReduceSum<keepdims=0>(large)  y = Add(x, sum)",
    many=[1 << 30, 1],
).SerializeToString()
session = open_session(data, 1, 256 << 20)
try:
    session.run(None, {"x": np.ones((4, 4), np.float32)})
except Exception as error:
    print("refused", str(error)[:200])
"""


@pytest.mark.slow
def test_a_session_may_not_take_all_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert done.stdout.startswith("refused"), done


def test_a_gru_without_steps_is_refused_before_it_ends_the_process() -> None:
    made = from_x(
        "y = GRU<hidden_size=4>(x, w, r)",
        "steps, n, 8",
        w=np.ones((1, 12, 8), np.float32),
        r=np.ones((1, 12, 4), np.float32),
    )
    content = torch.frombuffer(bytearray(made.SerializeToString()), dtype=torch.uint8)
    inputs = {"x": TensorType("FP32", ("steps", "n", 8))}
    outputs = {"y": TensorType("FP32", ("steps", 1, "n", 4))}
    graph, constants = whole_graph("gru", inputs, outputs, content, {})

    with pytest.raises(InvalidRequest, match="no elements; a model with GRU needs some"):
        run_named(graph, constants, {"x": np.zeros((0, 2, 8), np.float32)})
    ((y, _),) = run_named(graph, constants, {"x": np.ones((3, 2, 8), np.float32)}).values()
    assert y.shape == (3, 1, 2, 4)


def test_a_session_serves_all_runs_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    made = parsed("(float[2, 4] x) => (float[2, 4] y) { y = Abs(x) }").SerializeToString()
    content = torch.frombuffer(bytearray(made), dtype=torch.uint8)
    x, once = {"x": TensorType("FP32", (2, 4))}, iter([whole.open_session])
    monkeypatch.setattr(whole, "open_session", lambda *how: next(once)(*how))
    backend = CpuBackend(CpuExecutor(threads=1))
    static = specialise(*whole_graph("abs", x, {"y": x["x"]}, content, {}), x)
    program = backend.bind(*static, PackedWeights(), no_pause)
    planned = backend.prepare(program, sequential_plan(1)).run

    for run in 2 * (planned, partial(backend.interpret, program)):
        (y,) = run({"x": np.full((2, 4), -3, np.float32)}, pause=no_pause).values()
        assert y.tolist() == [[3] * 4] * 2
    backend.close()


TYPES = {
    "FP16": (TensorProto.FLOAT16, np.float16),
    "FP64": (TensorProto.DOUBLE, np.float64),
    "UINT16": (TensorProto.UINT16, np.uint16),
    "UINT64": (TensorProto.UINT64, np.uint64),
    "INT8": (TensorProto.INT8, np.int8),
    "BOOL": (TensorProto.BOOL, np.bool_),
}


@pytest.mark.parametrize("dtype", TYPES)
def test_lengths_that_follow_content_are_served_in_each_type(dtype: str, tmp_path: Path) -> None:
    element, kind = TYPES[dtype]
    name = TensorProto.DataType.Name(element).lower()
    made = parsed(
        f"({name}[b, 4] x, bool[b] m) => ({name}[k, 4] y) {{ y = Compress<axis=0>(x, m) }}"
    )
    (tmp_path / "upload").write_bytes(made.SerializeToString())
    artefact = load_artefact(import_here(tmp_path / "upload", tmp_path / "artefact"))
    x: np.ndarray[Any, Any] = np.arange(12).reshape(3, 4).astype(kind)

    (y,) = computed(artefact, {"x": x, "m": np.array([True, False, True])}).values()

    np.testing.assert_array_equal(y, x[[0, 2]])
    assert y.dtype == kind
