"""Files of narrow floats and of quantised operators."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from braid.engine.importer.artefact import Artefact, load_artefact
from braid.engine.importer.verification import reference
from braid.engine.ops.dtypes import DTYPE_NAMES
from braid.engine.ops.whole import KIND
from tests.engine.importer.running import import_here
from tests.engine.quantised.models import quantised
from tests.models.graphs import from_x, parsed


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


def imported(model: onnx.ModelProto, folder: Path) -> Artefact:
    onnx.save(model, folder / "model.onnx")
    return load_artefact(import_here(folder / "model.onnx", folder / "artefact"))


def test_weights_become_fp32_and_the_edges_stay(tmp_path: Path) -> None:
    found = imported(half("h = MatMul(x, w)  y = Tanh(h)", w=drawn(np.float16)), tmp_path)

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

    found = imported(made, tmp_path)

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

    found = imported(made, tmp_path)

    assert {tensor.dtype.itemsize for tensor in found.weights.values()} <= {2}
    (warning,) = [text for text in found.report.warnings if "FP16" in text]
    assert warning.startswith("computes in FP16 after each operator, which is slow: in FP32, ")


@pytest.mark.parametrize("inside", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_file_between_fp32_edges_is_known_by_what_is_inside(inside: int, tmp_path: Path) -> None:
    found = imported(
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
