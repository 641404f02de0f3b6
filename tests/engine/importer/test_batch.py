"""Where the batch is, on models of a few nodes, with ONNX Runtime as the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor

from braid.core.errors import ModelImportError
from braid.core.tensor import BATCH, TensorType
from braid.engine.importer.sandbox.pipeline import Study, study_batch, verify_elsewhere
from braid.engine.importer.upload.batch_axis import guess_batch, without_batch_symbol
from braid.engine.importer.verification.compare import in_double, relative_error
from braid.engine.importer.verification.example_inputs import find_example
from braid.engine.importer.verification.reference import (
    NO_WORDS,
    ReferenceModel,
    Words,
    open_reference,
)
from braid.engine.importer.verification.verify import Subject
from braid.engine.onnx.lowering import lower
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import interpret, specialise
from tests.models.graphs import model

MEMORY = 1 << 30
IMAGE = [1, 3, 4, 4]


def studied(made: onnx.ModelProto, folder: Path, reference: ReferenceModel | None = None) -> Study:
    upload = folder / "upload"
    upload.write_bytes(made.SerializeToString())
    oracle = open_reference(upload)
    template, weights = run_passes(*lower(made))
    plain = without_batch_symbol(template)
    example = find_example(plain, weights, oracle, MEMORY, {})
    return study_batch(Subject(plain, weights, example, MEMORY), reference or oracle)


def flat(shape: Sequence[int], target: Sequence[int]) -> onnx.ModelProto:
    """x ──> Relu ──> Reshape(target) ──> Softmax(last axis) ──> y"""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "t"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], axis=-1),
    ]
    return model(nodes, {"t": np.array(target)}, shape=shape)


@pytest.mark.parametrize("target", [[1, 48], [1, -1], [1, 3, 16], [-1, 48], [0, -1], [1, 3, -1]])
def test_batch_1_written_into_a_reshape_is_repaired(target: list[int], tmp_path: Path) -> None:
    study = studied(flat(IMAGE, target), tmp_path)

    assert study.batch is not None
    assert study.batch.inputs == {"x": 0}
    assert study.batch.outputs == {"y": 0}
    assert study.subject.template.inputs["x"].shape == ("batch", 3, 4, 4)
    assert study.warnings == ()


def test_a_batch_folded_into_rows_and_back_is_repaired(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),  # [3 * batch, 16]
        helper.make_node("Softmax", ["r"], ["s"], axis=-1),
        helper.make_node("Reshape", ["s", "back"], ["y"]),
    ]
    constants = {"rows": np.array([3, 16]), "back": np.array(IMAGE)}

    assert studied(model(nodes, constants, shape=IMAGE), tmp_path).batch is not None


def test_the_batch_of_an_output_is_found_on_another_axis(tmp_path: Path) -> None:
    made = model([helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])], shape=["n", 4])

    study = studied(made, tmp_path)

    assert study.batch is not None
    assert study.batch.outputs == {"y": 1}


def test_an_output_that_does_not_follow_the_batch_has_no_axis(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["c"], ["z"])]
    made = model(nodes, {"c": np.arange(3, dtype=np.float32)}, shape=["n", 4])
    made.graph.output.append(helper.make_empty_tensor_value_info("z"))

    study = studied(made, tmp_path)

    assert study.batch is not None
    assert study.batch.outputs == {"y": 0, "z": None}


def test_rows_that_influence_each_other_are_served_unbatched(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    study = studied(model(nodes, shape=["n", 4]), tmp_path)

    assert study.batch is None
    assert study.subject.template.inputs["x"].shape == ("n", 4)
    assert study.rows == "operator 'ReduceMean_0' (aten.mean) works across the rows"
    assert f"served unbatched, at its own shape: {study.rows}" in study.warnings[-1]


def test_rows_that_share_a_range_of_integers_are_served_unbatched(tmp_path: Path) -> None:
    # Rows drawn alike have ranges alike: the difference alone would pass as rounding.
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Div", ["m", "steps"], ["scale"]),
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    study = studied(model(nodes, {"steps": np.float32(255)}, shape=["n", 40]), tmp_path)

    assert study.batch is None
    assert study.rows == "operator 'ReduceMax_0' (aten.amax) works across the rows"


def test_a_model_of_one_row_whose_rows_would_influence_each_other_takes_them_one_by_one(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Mul", ["m", "x"], ["y"]),
    ]
    study = studied(model(nodes, shape=[1, 4]), tmp_path)

    assert study.batch is not None
    assert study.batch.alone
    assert study.subject.template.inputs["x"].shape == (BATCH, 4)
    assert f"served one row at a time: {study.rows}" in study.warnings[-1]


def test_an_output_with_several_rows_a_request_is_served_unbatched(tmp_path: Path) -> None:
    made = model(
        [helper.make_node("Reshape", ["x", "t"], ["y"])], {"t": np.array([-1, 2])}, ["n", 4]
    )

    study = studied(made, tmp_path)

    assert study.batch is None
    assert study.rows == "output 'y' joins the rows with another dimension"
    assert "--batchable" not in study.warnings[0]  # it would not help


def test_a_fixed_leading_extent_is_no_batch(tmp_path: Path) -> None:
    study = studied(model([helper.make_node("Relu", ["x"], ["y"])], shape=[2, 4]), tmp_path)

    assert study.batch is None
    assert study.subject.template.inputs["x"].shape == (2, 4)


def test_an_extent_the_file_calls_batch_gets_another_name_unless_it_is_one(
    tmp_path: Path,
) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], shape=[2, "batch", 4])

    study = studied(made, tmp_path)

    assert study.batch is None
    assert study.subject.template.inputs["x"].shape == (2, "batch_", 4)


def test_a_symbol_used_for_two_extents_is_no_batch() -> None:
    template, _ = lower(model([helper.make_node("Relu", ["x"], ["y"])], shape=["n", "n"]))

    assert guess_batch(template) is None


class Shifted:
    """A reference whose outputs are off by one factor, and by another when computed again."""

    name = "an oracle"
    file: Path | None = None
    words: Words = NO_WORDS

    def __init__(self, inner: ReferenceModel, factor: float, again: float) -> None:
        self._inner, self._factor, self._again = inner, factor, again

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value * self._factor for name, value in self._inner.run(inputs).items()}

    def reordered(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value * self._again for name, value in self._inner.run(inputs).items()}


def shifted(folder: Path, factor: float, again: float) -> tuple[onnx.ModelProto, ReferenceModel]:
    made = flat(IMAGE, [1, 48])
    (folder / "upload").write_bytes(made.SerializeToString())
    return made, Shifted(open_reference(folder / "upload"), factor, again)


def test_disagreement_with_the_reference_names_output_and_error(tmp_path: Path) -> None:
    made, reference = shifted(tmp_path, 1.001, 1.001)

    with pytest.raises(ModelImportError, match=r"an oracle: output 'y' has a relative error of 0"):
        studied(made, tmp_path, reference)


def test_a_reference_that_trembles_widens_the_tolerance_and_is_reported(tmp_path: Path) -> None:
    made, reference = shifted(tmp_path, 1.0003, 0.9999)

    study = studied(made, tmp_path, reference)

    assert study.checked.tolerance == pytest.approx(16 * 4e-4, rel=0.1)
    assert "rounding moves the outputs" in study.warnings[0]


def test_a_model_that_rounding_decides_cannot_be_verified(tmp_path: Path) -> None:
    made, reference = shifted(tmp_path, 1.01, 0.99)

    with pytest.raises(ModelImportError, match="rounding alone moves the outputs"):
        studied(made, tmp_path, reference)


class WrongElsewhere:
    """A reference that has other numbers for wide inputs."""

    name = "an oracle"
    file: Path | None = None
    words: Words = NO_WORDS

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        x = inputs["x"]
        return {"y": torch.relu(x) * (1 if x.shape[1] == 576 else 2)}

    reordered = run


def test_extents_left_open_are_checked_at_a_second_place(tmp_path: Path) -> None:
    study = studied(
        model([helper.make_node("Relu", ["x"], ["y"])], shape=["n", "samples"]),
        tmp_path,
        WrongElsewhere(),
    )

    assert study.batch is not None
    with pytest.raises(ModelImportError, match="does not agree with an oracle"):
        verify_elsewhere(study.subject, WrongElsewhere())


def test_constant_outputs_are_reported_as_proving_little(tmp_path: Path) -> None:
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
    bounds = {"low": np.array(5, np.float32), "high": np.array(5, np.float32)}

    study = studied(model(nodes, bounds), tmp_path)

    assert "proves little" in study.warnings[0]


def test_a_template_computes_in_double_where_it_computed_in_single() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["three"], ["c"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    wide = in_double(lower(model(nodes, {"three": np.array([3])}, shape=["n", 2]))[0])
    specs = {"x": TensorType("FP64", (1, 2))}

    graph, constants = specialise(wide, {}, specs)
    (y,) = interpret(graph, constants, {"x": torch.zeros(1, 2).double()}).values()

    assert y.dtype == torch.float64
    assert y.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("expected", "got", "error"),
    [
        ([1.0, 4.0], [1.0, 4.4], 0.1),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([float("nan"), 1.0], [float("nan"), 1.0], 0.0),
        ([float("inf"), 1.0], [float("inf"), 1.0], 0.0),
        ([float("inf"), 1.0], [float("-inf"), 1.0], float("inf")),
        ([1.0, 1.0], [float("nan"), 1.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_relative_error(expected: list[float], got: list[float], error: float) -> None:
    assert relative_error(torch.tensor(expected), torch.tensor(got)) == pytest.approx(error)


def test_integers_are_compared_by_the_share_that_differs() -> None:
    assert relative_error(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])) == 0.25
