"""Whole networks at batch 1 against ONNX Runtime, within 1e-4 of the largest output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import pytest

from tests.engine.onnx.oracle import assert_same, through_braid, through_onnxruntime
from tests.models.real import LIGHT_MODELS, REAL_MODELS, light_inputs, light_model, real_path

LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # a quarter to half a gigabyte of weights each
IN_CI = ("densenet121", "inception_v1", "inception_v2", "resnet50", "ppocr4_det", "ppocr4_rec")


def marked(names: Iterable[str]) -> list[Any]:
    """The names as test cases, those that take long marked."""
    marks = {**dict.fromkeys(LARGE, pytest.mark.slow), **dict.fromkeys(IN_CI, pytest.mark.ci)}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.mark.parametrize("name", marked(LIGHT_MODELS))
def test_light_models_with_random_weights(name: str) -> None:
    model, inputs = light_model(name), light_inputs(name)

    ours, _, _ = through_braid(model, inputs)

    reference = through_onnxruntime(model, inputs)
    assert np.std(reference["logits"]) > 0.1, "an output that does not vary proves nothing"
    assert_same(ours, reference, tolerance=1e-4)


@pytest.mark.parametrize("name", marked(REAL_MODELS))
def test_models_that_packages_ship(name: str) -> None:
    model, inputs = onnx.load(real_path(name)), REAL_MODELS[name].inputs(1)

    ours, _, graph = through_braid(model, inputs)

    assert_same(ours, through_onnxruntime(model, inputs), tolerance=1e-4)
    left = {op.kind for op in graph.operators}
    assert not left & {"braid.shape", "braid.constant_of_shape", "braid.identity", "braid.cond"}


def test_the_rate_of_silero_chooses_its_branch() -> None:
    """At 8 kHz the network has other weights and takes 256 samples."""
    model = onnx.load(real_path("silero"))
    inputs = REAL_MODELS["silero"].inputs(1)
    inputs |= {"sr": np.array(8000, np.int64), "input": inputs["input"][:, ::2]}

    ours, _, _ = through_braid(model, inputs)

    assert_same(ours, through_onnxruntime(model, inputs), tolerance=1e-4)
