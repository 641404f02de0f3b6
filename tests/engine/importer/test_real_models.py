"""Whole imports of real networks, and what the artefact computes against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from braid.core.tensor import TensorType
from braid.engine.importer.artefact import Artefact, load_artefact
from braid.engine.importer.verification.compare import relative_error
from braid.engine.ops.dtypes import spec_of
from braid.engine.passes.specialise import interpret, specialise
from tests.engine.importer.running import imported
from tests.models.real import (
    LIGHT_MODELS,
    REAL_MODELS,
    Arrays,
    light_inputs,
    light_model,
    real_path,
)

_IN_CI = {"squeezenet", "ppocr2_cls", "silero"}
_FIXED = ("ddddocr_det", "ddddocr_rec")  # declare batch 1
_BATCHED = (
    "nudenet",
    "ppocr4_det",
    "ppocr4_rec",
    "ppocr2_cls",
    "ppocr6_det",
    "ppocr6_rec",
    "magika",
)
_UNBATCHED = tuple(name for name in REAL_MODELS if name not in (*_BATCHED, *_FIXED))


def each(names: Iterable[str]) -> list[Any]:
    """The names as test cases, marked for CI or slow."""
    return [
        pytest.param(name, marks=pytest.mark.ci if name in _IN_CI else pytest.mark.slow)
        for name in names
    ]


def outputs(artefact: Artefact, inputs: Arrays) -> dict[str, torch.Tensor]:
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
    static = {name: tensors[name] for name in artefact.report.static_inputs}
    graph, constants = specialise(artefact.graph, artefact.weights, specs, static)
    return interpret(graph, constants, tensors)


def oracle(upload: bytes, inputs: Arrays) -> dict[str, torch.Tensor]:
    session = onnxruntime.InferenceSession(upload, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, session.run(None, dict(inputs))), strict=True))


def assert_agree(artefact: Artefact, upload: bytes, inputs: Arrays, tolerance: float) -> None:
    got, expected = outputs(artefact, inputs), oracle(upload, inputs)
    for name, wanted in expected.items():
        assert relative_error(wanted, got[name]) <= tolerance, name


@pytest.mark.parametrize("name", each(LIGHT_MODELS))
async def test_a_light_model_of_batch_1_answers_any_batch(name: str, tmp_path: Path) -> None:
    upload = light_model(name).SerializeToString()

    artefact = load_artefact(await imported(upload, tmp_path))

    (given,) = artefact.graph.inputs.values()
    assert given == TensorType("FP32", ("batch", 3, 224, 224))
    assert artefact.report.warnings == ()
    assert artefact.report.verified.batches == (1, 3, 5)
    images = light_inputs(name, batch=8)
    together = outputs(artefact, images)["logits"]
    for row in range(8):
        one = {key: value[row : row + 1] for key, value in images.items()}
        (alone,) = oracle(upload, one).values()
        assert relative_error(alone, together[row : row + 1]) < 1e-4


@pytest.mark.parametrize("name", each(_BATCHED))
async def test_a_real_model_with_an_open_batch_is_batched(name: str, tmp_path: Path) -> None:
    upload = real_path(name).read_bytes()

    artefact = load_artefact(await imported(upload, tmp_path))

    assert artefact.report.batch is not None
    assert not artefact.report.warnings
    assert_agree(artefact, upload, REAL_MODELS[name].inputs(3), 1e-4)


@pytest.mark.parametrize("name", each(_UNBATCHED))
async def test_a_model_whose_leading_extent_is_no_batch_is_served_as_it_is(
    name: str, tmp_path: Path
) -> None:
    upload = real_path(name).read_bytes()

    artefact = load_artefact(await imported(upload, tmp_path))

    assert artefact.report.batch is None
    shapes = [spec.shape for spec in artefact.graph.inputs.values()]
    assert not any("batch" in shape for shape in shapes)
    assert_agree(artefact, upload, REAL_MODELS[name].inputs(1), 1e-4)


async def test_silero_keeps_its_rate_as_a_static_input(tmp_path: Path) -> None:
    upload = real_path("silero").read_bytes()

    report = load_artefact(await imported(upload, tmp_path)).report

    assert report.static_inputs == ("sr",)
    assert report.static_values == {"sr": 16000}
    assert report.example_shapes["sr"] == ()


@pytest.mark.ci
async def test_given_example_shapes_are_the_ones_checked(tmp_path: Path) -> None:
    upload = real_path("ppocr2_cls").read_bytes()

    artefact = await imported(upload, tmp_path, example_shapes={"x": (1, 3, 48, 192)})

    assert load_artefact(artefact).report.example_shapes == {"x": (1, 3, 48, 192)}
