"""Files of FP16 and BF16: imported in FP32, or as they are where that is something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from braid.engine.importer.artefact import Artefact, load_artefact
from braid.engine.ops.dtypes import DTYPE_NAMES
from tests.engine.importer.running import import_here
from tests.models.graphs import as_model, graph, tensors

FP16 = TensorProto.FLOAT16


def half(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A model from x [n, 8] to y [n, 8], both FP16."""
    shapes = tensors(FP16, x=["n", 8]), tensors(FP16, y=["n", 8])
    return as_model(graph(nodes, *shapes, constants))


def linear(*, scale: float = 0.3) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    weight = np.random.default_rng(0).normal(0, scale, (8, 8)).astype(np.float16)
    return half(nodes, {"w": weight})


def types(artefact: Artefact) -> set[str]:
    """Of the constants, and what the casts inside make."""
    casts = (op for op in artefact.graph.operators if op.kind == "braid.cast")
    named = {str(op.attributes["dtype"]) for op in casts}
    return named | {DTYPE_NAMES[tensor.dtype] for tensor in artefact.weights.values()}


def imported(model: onnx.ModelProto, folder: Path) -> Artefact:
    onnx.save(model, folder / "model.onnx")
    return load_artefact(import_here(folder / "model.onnx", folder / "artefact"))


def test_weights_become_fp32_and_the_edges_stay(tmp_path: Path) -> None:
    found = imported(linear(), tmp_path)

    assert types(found) == {"FP16", "FP32"}
    assert {tensor.dtype.itemsize for tensor in found.weights.values()} == {4}
    assert found.graph.inputs["x"].dtype == "FP16"
    assert found.graph.spec(found.graph.outputs["y"]).dtype == "FP16"
    assert found.report.narrow_type == "FP16"
    assert found.report.batch is not None
    assert "the file computes in FP16; it is served in FP32 inside" in found.report.warnings


#   x BF16 ──> Cast(FP32) ──> MatMul ──> Cast(BF16) ──> y
def test_bf16_is_compared_with_onnxruntime_where_that_runs_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["wide", "w"], ["h"]),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.BFLOAT16),
    ]
    weight = np.random.default_rng(0).normal(0, 0.3, (8, 8)).astype(np.float32)
    bf16 = TensorProto.BFLOAT16
    shapes = tensors(bf16, x=["n", 8]), tensors(bf16, y=["n", 8])

    found = imported(as_model(graph(nodes, *shapes, {"w": weight})), tmp_path)

    assert found.report.verified.reference.startswith("onnxruntime")
    assert found.report.narrow_type == "BF16"
    assert found.report.batch is not None


def test_a_model_that_overflows_in_fp16_is_served_as_it_is(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "large"], ["h"]),  # infinite in FP16, not in FP32
        helper.make_node("Transpose", ["h"], ["t"]),  # moves what FP16 holds
        helper.make_node("Transpose", ["t"], ["u"]),
        helper.make_node("Mul", ["u", "small"], ["y"]),
    ]
    large = np.array(60000, np.float16)
    constants = {"large": large, "small": np.array(1 / 1024, np.float16)}

    found = imported(half(nodes, constants), tmp_path)

    assert {tensor.dtype.itemsize for tensor in found.weights.values()} <= {2}
    (warning,) = [text for text in found.report.warnings if "FP16" in text]
    assert warning.startswith("computes in FP16 after each operator, which is slow: in FP32, ")


@pytest.mark.parametrize("inside", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_file_between_fp32_edges_is_known_by_what_is_inside(inside: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=inside),
        helper.make_node("Add", ["narrow", "narrow"], ["twice"]),
        helper.make_node("Cast", ["twice"], ["y"], to=TensorProto.FLOAT),
    ]
    made = as_model(graph(nodes, tensors(x=["n", 8]), tensors(y=["n", 8])))
    made.opset_import[0].version = 17

    found = imported(made, tmp_path)

    name = "FP16" if inside == FP16 else "BF16"
    assert found.report.narrow_type == name
    assert [op.kind for op in found.graph.operators] == ["aten.add"]
