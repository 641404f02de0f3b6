"""Real models through the whole service: onnxruntime's answers, at batch 1, 3 and 8.

The light models have batch 1 written into them, so at other batches onnxruntime answers row by
row. Their weights are seeded and random, and the value before the softmax is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.models import LIGHT_MODELS, REAL_MODELS, Arrays, light_inputs, light_model, real_path
from tests.server.service import ServerProcess

BATCHES = (1, 3, 8)
QUICK_LIGHT = ("squeezenet", "shufflenet")
QUICK_REAL = ("ppocr2_cls", "silero_16k")
TOLERANCE = 1e-4  # of the largest output


def quick_or_slow(names: Any, quick: tuple[str, ...]) -> list[Any]:
    """Parameters of which all but ``quick`` are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", quick_or_slow(LIGHT_MODELS, QUICK_LIGHT))
def test_a_light_model_answers_like_onnxruntime(
    shared: ServerProcess, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(light_model(name).SerializeToString())
    session = onnxruntime.InferenceSession(path)

    with shared.client() as client:
        client.register(name, path, batch_sizes=[1, 4], planner="sequential", wait=True)
        for batch in BATCHES:
            inputs = light_inputs(name, batch)
            rows = [
                session.run(None, {key: value[row : row + 1] for key, value in inputs.items()})
                for row in range(batch)
            ]
            expected = dict(
                zip(_names(session), map(np.concatenate, zip(*rows, strict=True)), strict=True)
            )
            _same(client.infer(name, inputs).outputs, expected)
        client.delete(name)


@pytest.mark.parametrize("name", quick_or_slow(REAL_MODELS, QUICK_REAL))
def test_a_shipped_model_answers_like_onnxruntime(shared: ServerProcess, name: str) -> None:
    path = real_path(name)
    session = onnxruntime.InferenceSession(path)

    with shared.client() as client:
        client.register(name, path, batch_sizes=[1, 4], planner="sequential", wait=True)
        for batch in BATCHES if name != "silero_openvino" else (1,):  # that file fixes batch 1
            inputs = REAL_MODELS[name].inputs(batch)
            expected = dict(zip(_names(session), session.run(None, inputs), strict=True))
            _same(client.infer(name, inputs).outputs, expected)
        client.delete(name)


def _names(session: onnxruntime.InferenceSession) -> list[str]:
    return [output.name for output in session.get_outputs()]


def _same(got: Mapping[str, Any], expected: Arrays) -> None:
    assert set(got) == set(expected)
    for name, array in expected.items():
        want = np.asarray(array, np.float64)
        scale = np.abs(want).max()
        np.testing.assert_allclose(got[name], want, rtol=0, atol=TOLERANCE * scale, err_msg=name)
