"""Whole imports: real networks, files of narrow floats and of quantised operators."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto

from braid.core.tensor import TensorType
from braid.engine.importer.artefact import Artefact, load_artefact
from braid.engine.importer.verification import reference
from braid.engine.importer.verification.verify import relative_error
from braid.engine.ops.dtypes import DTYPE_NAMES
from braid.engine.ops.whole import KIND
from tests.engine.importer.running import computed, import_here, imported
from tests.engine.onnx.oracle import through_onnxruntime
from tests.engine.quantised.models import quantised
from tests.models.graphs import from_x, parsed
from tests.models.real import (
    LIGHT_MODELS,
    REAL_MODELS,
    Arrays,
    light_inputs,
    light_model,
    real_path,
)

_IN_CI = {"squeezenet", "ppocr2_cls", "ppocr6_rec", "silero", "silero_half", "magika"}
_FIXED = ("ddddocr_det", "ddddocr_rec")  # declare batch 1
_BATCHED = tuple(name for name in REAL_MODELS if name in ("nudenet", "magika") or "ppocr" in name)


def each(names: Iterable[str]) -> list[Any]:
    """The names as test cases, marked for CI or slow."""
    return [
        pytest.param(name, marks=pytest.mark.ci if name in _IN_CI else pytest.mark.slow)
        for name in names
    ]


def error(wanted: NDArray[Any], got: NDArray[Any]) -> float:
    return relative_error(torch.from_numpy(wanted), torch.from_numpy(got))


def assert_agree(artefact: Artefact, upload: bytes, inputs: Arrays) -> None:
    got = computed(artefact, inputs)
    for name, wanted in through_onnxruntime(onnx.load_from_string(upload), inputs).items():
        assert error(wanted, got[name]) <= 1e-4, name


@pytest.mark.parametrize("name", each(LIGHT_MODELS))
async def test_a_light_model_of_batch_1_answers_any_batch(name: str, tmp_path: Path) -> None:
    model = light_model(name)

    artefact = load_artefact(await imported(model, tmp_path))

    (given,) = artefact.graph.inputs.values()
    assert given == TensorType("FP32", ("batch", 3, 224, 224))
    assert artefact.report.warnings == ()
    assert artefact.report.verified.batches == (1, 3, 5)
    images = light_inputs(name, batch=8)
    together = computed(artefact, images)["logits"]
    for row in range(8):
        one = {key: value[row : row + 1] for key, value in images.items()}
        (alone,) = through_onnxruntime(model, one).values()
        assert error(alone, together[row : row + 1]) < 1e-4


@pytest.mark.parametrize("name", each(REAL_MODELS))
async def test_a_real_model_is_batched_where_its_leading_extent_is_a_batch(
    name: str, tmp_path: Path
) -> None:
    upload = real_path(name).read_bytes()

    artefact = load_artefact(await imported(upload, tmp_path))

    is_batched = name in _BATCHED
    if name not in _FIXED:
        shapes = [spec.shape for spec in artefact.graph.inputs.values()]
        assert (artefact.report.batch is not None) == is_batched
        assert any("batch" in shape for shape in shapes) == is_batched
    assert not (is_batched and artefact.report.warnings)
    assert_agree(artefact, upload, REAL_MODELS[name].inputs(3 if is_batched else 1))


async def test_the_rate_of_silero_is_a_static_input_that_chooses_its_branch(tmp_path: Path) -> None:
    upload = real_path("silero").read_bytes()
    inputs = REAL_MODELS["silero"].inputs(1)
    at_8_khz = {"sr": np.array(8000, np.int64), "input": inputs["input"][:, ::2]}

    artefact = load_artefact(await imported(upload, tmp_path))

    assert artefact.report.static_inputs == ("sr",)
    assert artefact.report.static_values == {"sr": 16000}
    assert artefact.report.example_shapes["sr"] == ()
    assert_agree(artefact, upload, {**inputs, **at_8_khz})


@pytest.mark.ci
async def test_given_example_shapes_are_the_ones_checked(tmp_path: Path) -> None:
    upload = real_path("ppocr2_cls").read_bytes()

    artefact = await imported(upload, tmp_path, example_shapes={"x": (1, 3, 48, 192)})

    assert load_artefact(artefact).report.example_shapes == {"x": (1, 3, 48, 192)}


def half(body: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model from x [n, 8] to y [n, 8], both FP16."""
    return parsed(f"(float16[n, 8] x) => (float16[n, 8] y) {{ {body} }}", constants)


def drawn(dtype: type) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.3, (8, 8)).astype(dtype)


def types(artefact: Artefact) -> set[str]:
    """Of the constants, and what the casts inside make."""
    casts = (op for op in artefact.graph.operators if op.kind == "braid.cast")
    named = {str(op.attributes["dtype"]) for op in casts}
    return named | {DTYPE_NAMES[tensor.dtype] for tensor in artefact.weights.values()}


def kept(model: onnx.ModelProto, folder: Path) -> Artefact:
    onnx.save(model, folder / "model.onnx")
    return load_artefact(import_here(folder / "model.onnx", folder / "artefact"))


def test_weights_become_fp32_and_the_edges_stay(tmp_path: Path) -> None:
    found = kept(half("h = MatMul(x, w)  y = Tanh(h)", w=drawn(np.float16)), tmp_path)

    assert types(found) == {"FP16", "FP32"}
    assert {tensor.dtype.itemsize for tensor in found.weights.values()} == {4}
    assert found.graph.inputs["x"].dtype == "FP16"
    assert found.graph.spec(found.graph.outputs["y"]).dtype == "FP16"
    assert found.report.narrow_type == "FP16"
    assert found.report.batch is not None
    assert "the file computes in FP16; it is served in FP32 inside" in found.report.warnings


#   x BF16 ──> Cast(FP32) ──> MatMul ──> Cast(BF16) ──> y
def test_bf16_is_compared_with_onnxruntime_where_that_runs_it(tmp_path: Path) -> None:
    made = parsed(
        """(bfloat16[n, 8] x) => (bfloat16[n, 8] y)
        { wide = Cast<to=1>(x)  h = MatMul(wide, w)  y = Cast<to=16>(h) }""",
        {"w": drawn(np.float32)},
    )

    found = kept(made, tmp_path)

    assert found.report.verified.reference.startswith("onnxruntime")
    assert found.report.narrow_type == "BF16"
    assert found.report.batch is not None


def test_a_model_that_overflows_in_fp16_is_served_as_it_is(tmp_path: Path) -> None:
    made = half(
        # h is infinite in FP16, not in FP32; the others move what FP16 holds
        "h = Mul(x, large)  t = Transpose(h)  u = Transpose(t)  y = Mul(u, small)",
        large=np.array(60000, np.float16),
        small=np.array(1 / 1024, np.float16),
    )

    found = kept(made, tmp_path)

    assert {tensor.dtype.itemsize for tensor in found.weights.values()} <= {2}
    (warning,) = [text for text in found.report.warnings if "FP16" in text]
    assert warning.startswith("computes in FP16 after each operator, which is slow: in FP32, ")


@pytest.mark.parametrize("inside", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_file_between_fp32_edges_is_known_by_what_is_inside(inside: int, tmp_path: Path) -> None:
    found = kept(
        from_x(
            f"narrow = Cast<to={inside}>(x)  s = Add(narrow, narrow)  y = Cast<to=1>(s)", "n, 8"
        ),
        tmp_path,
    )

    name = "FP16" if inside == TensorProto.FLOAT16 else "BF16"
    assert found.report.narrow_type == name
    assert [op.kind for op in found.graph.operators] == ["aten.add"]


NAMES = ["separable", "attention"]


@pytest.mark.parametrize("saturates", [None, True], ids=["this CPU", "one that saturates"])
@pytest.mark.parametrize("name", NAMES)
def test_they_are_imported_in_parts(
    name: str, saturates: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if saturates:
        monkeypatch.setattr(reference, "has_integer_instructions", lambda: False)
    file = quantised(name, tmp_path, signed=False, per_channel=False, operators=True)

    found = load_artefact(import_here(file, tmp_path / "artefact"))

    assert all(op.kind != KIND for op in found.graph.operators), found.report.warnings
    assert found.report.verified.reference.startswith("onnxruntime")
