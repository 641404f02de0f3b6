"""Whole imports of real networks, and what the artefact computes against ONNX Runtime."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from braid.core.tensor import TensorType
from braid.engine.importer.artefact import Artefact, load_artefact
from braid.engine.importer.verification.verify import relative_error
from tests.engine.importer.running import computed, imported
from tests.engine.onnx.oracle import through_onnxruntime
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
