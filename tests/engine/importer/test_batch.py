"""Where the batch is and what extents of outputs follow, with ONNX Runtime as the oracle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from braid.core.errors import ModelImportError
from braid.core.tensor import BATCH, TensorType
from braid.engine.importer.sandbox.pipeline import verify_elsewhere
from braid.engine.importer.upload.batch_axis import guess_batch
from braid.engine.importer.verification.probe import with_output_specs
from braid.engine.importer.verification.reference import (
    NO_WORDS,
    ReferenceModel,
    Words,
    open_reference,
)
from braid.engine.importer.verification.verify import in_double, relative_error
from braid.engine.onnx.lowering import lower
from braid.engine.passes.specialise import interpret, specialise
from tests.engine.importer.running import studied
from tests.models.graphs import from_x, parsed

IMAGE = [1, 3, 4, 4]


def flat(shape: Sequence[int], target: Sequence[int]) -> onnx.ModelProto:
    """x ──> Relu ──> Reshape(target) ──> Softmax(last axis) ──> y"""
    text = "r = Relu(x)  f = Reshape(r, t)  y = Softmax<axis=-1>(f)"
    return from_x(text, ", ".join(map(str, shape)), t=target)


@pytest.mark.parametrize("target", [[1, 48], [1, -1], [1, 3, 16], [-1, 48], [0, -1], [1, 3, -1]])
def test_batch_1_written_into_a_reshape_is_repaired(target: list[int], tmp_path: Path) -> None:
    study = studied(flat(IMAGE, target), tmp_path)

    assert study.batch is not None
    assert study.batch.inputs == {"x": 0}
    assert study.batch.outputs == {"y": 0}
    assert study.subject.template.inputs["x"].shape == ("batch", 3, 4, 4)
    assert study.warnings == ()


def test_a_batch_folded_into_rows_and_back_is_repaired(tmp_path: Path) -> None:
    folded = "r = Reshape(x, rows)  s = Softmax<axis=-1>(r)  y = Reshape(s, back)"
    made = from_x(folded, "1, 3, 4, 4", rows=[3, 16], back=IMAGE)

    assert studied(made, tmp_path).batch is not None


def test_the_batch_of_an_output_is_found_on_another_axis(tmp_path: Path) -> None:
    study = studied(from_x("y = Transpose<perm=[1, 0]>(x)"), tmp_path)

    assert study.batch is not None
    assert study.batch.outputs == {"y": 1}


def test_an_output_that_does_not_follow_the_batch_has_no_axis(tmp_path: Path) -> None:
    text = "(float[n, 4] x) => (float[] y, float[] z) { y = Relu(x)  z = Neg(c) }"

    study = studied(parsed(text, {"c": np.arange(3, dtype=np.float32)}), tmp_path)

    assert study.batch is not None
    assert study.batch.outputs == {"y": 0, "z": None}


def test_rows_that_influence_each_other_are_served_unbatched(tmp_path: Path) -> None:
    made = from_x("m = ReduceMean<axes=[0], keepdims=1>(x)  y = Sub(x, m)")
    study = studied(made, tmp_path)

    assert study.batch is None
    assert study.subject.template.inputs["x"].shape == ("n", 4)
    assert study.rows == "operator 'ReduceMean_0' (aten.mean) works across the rows"
    assert f"served unbatched, at its own shape: {study.rows}" in study.warnings[-1]


def test_a_model_of_one_row_whose_rows_would_influence_each_other_takes_them_one_by_one(
    tmp_path: Path,
) -> None:
    made = from_x("m = ReduceMean<axes=[0], keepdims=1>(x)  y = Mul(m, x)", "1, 4")
    study = studied(made, tmp_path)

    assert study.batch is not None
    assert study.batch.alone
    assert study.subject.template.inputs["x"].shape == (BATCH, 4)
    assert f"served one row at a time: {study.rows}" in study.warnings[-1]


def test_an_output_with_several_rows_a_request_is_served_unbatched(tmp_path: Path) -> None:
    study = studied(from_x("y = Reshape(x, t)", t=[-1, 2]), tmp_path)

    assert study.batch is None
    assert study.rows == "output 'y' joins the rows with another dimension"
    assert "--batchable" not in study.warnings[0]  # it would not help


def test_a_fixed_leading_extent_is_no_batch(tmp_path: Path) -> None:
    study = studied(from_x("y = Relu(x)", "2, 4"), tmp_path)

    assert study.batch is None
    assert study.subject.template.inputs["x"].shape == (2, 4)


def test_an_extent_the_file_calls_batch_gets_another_name_unless_it_is_one(tmp_path: Path) -> None:
    study = studied(from_x("y = Relu(x)", "2, batch, 4"), tmp_path)

    assert study.batch is None
    assert study.subject.template.inputs["x"].shape == (2, "batch_", 4)


def test_a_symbol_used_for_two_extents_is_no_batch() -> None:
    template, _ = lower(from_x("y = Relu(x)", "n, n"))

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
    study = studied(from_x("y = Relu(x)", "n, samples"), tmp_path, WrongElsewhere())

    assert study.batch is not None
    with pytest.raises(ModelImportError, match="does not agree with an oracle"):
        verify_elsewhere(study.subject, WrongElsewhere())


def test_constant_outputs_are_reported_as_proving_little(tmp_path: Path) -> None:
    made = from_x("y = Clip(x, five, five)", five=np.float32(5))

    study = studied(made, tmp_path)

    assert "proves little" in study.warnings[0]


def test_a_template_computes_in_double_where_it_computed_in_single() -> None:
    made = from_x("s = Shape(x)  f = Cast<to=1>(s)  y = Add(x, f)", "n, 2")
    wide = in_double(lower(made)[0])
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
        ([1, 2, 3, 4], [1, 2, 3, 5], 0.25),  # integers: the share that differs
    ],
)
def test_relative_error(expected: list[float], got: list[float], error: float) -> None:
    assert relative_error(torch.tensor(expected), torch.tensor(got)) == pytest.approx(error)


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        ("Relu(x)", "n, 3, h, w", ["batch", 3, "h", "w"]),
        ("Transpose<perm=[3, 0, 1, 2]>(x)", "n, 3, h, w", ["w", "batch", 3, "h"]),
        ("MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)", "n, 3, h, 8", ["batch", 3, "y_2", 4]),
        ("GlobalAveragePool(x)", "n, 3, h, w", ["batch", 3, 1, 1]),
        ("Relu(x)", "1, 3, 4, 4", ["batch", 3, 4, 4]),
    ],
)
def test_an_extent_has_the_name_of_what_it_follows(
    node: str, shape: str, expected: list[Any], tmp_path: Path
) -> None:
    study = studied(from_x(f"y = {node}", shape), tmp_path)

    template = with_output_specs(study.subject, study.batch)
    assert list(template.spec(template.outputs["y"]).shape) == expected
