"""Real models through the whole service: onnxruntime's answers, at batch 1, 3 and 8.

Where a file fixes batch 1, onnxruntime answers row by row. The light models have seeded, random
weights, and the value before the softmax is compared; the networks come in both formats.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from benchmarks.networks import NETWORKS
from benchmarks.networks.export import export_onnx, export_pt2
from braid_client import Client
from tests.models.real import (
    LIGHT_MODELS,
    REAL_MODELS,
    WHOLE_MODEL,
    Arrays,
    light_inputs,
    light_model,
    real_path,
)
from tests.service.server_process import ServerProcess

BATCHES = (1, 3, 8)
FORMATS = ("onnx", "pt2")
QUICK = ("silero_16k",)
IN_CI = ("squeezenet", "shufflenet", "ppocr2_cls")
TOLERANCE = 1e-4  # of the largest output


def marked(names: Any) -> list[Any]:
    """Parameters of which all but ``QUICK`` are slow, or for CI."""
    ci, slow = pytest.mark.ci, pytest.mark.slow
    marks = {name: [ci] if name in IN_CI else [slow] for name in names if name not in QUICK}
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


@pytest.mark.parametrize("name", marked(LIGHT_MODELS))
def test_a_light_model_answers_like_onnxruntime(
    shared: ServerProcess, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(light_model(name).SerializeToString())

    with shared.client() as client:
        client.register(name, path, batch_sizes=[1, 4], planner="sequential", wait=True)
        for batch in BATCHES:
            inputs = light_inputs(name, batch)
            _compare(client, name, path, inputs)
        client.delete(name)


@pytest.mark.parametrize("name", marked(REAL_MODELS))
def test_a_shipped_model_answers_like_onnxruntime(shared: ServerProcess, name: str) -> None:
    path = real_path(name)

    with shared.client() as client:
        client.register(name, path, batch_sizes=[1, 4], planner="sequential", wait=True)
        for batch in BATCHES if name != "silero_openvino" else (1,):  # that file fixes batch 1
            inputs = REAL_MODELS[name].inputs(batch)
            _compare(client, name, path, inputs)
        client.delete(name)


@pytest.mark.slow
def test_a_model_outside_the_table_is_served_whole(shared: ServerProcess) -> None:
    if WHOLE_MODEL.path is None:
        pytest.skip(f"package {WHOLE_MODEL.package} is not installed")

    with shared.client() as client:
        shapes = {"input1": [1, 1, 64, 160]}
        client.register("whole", WHOLE_MODEL.path, batch_sizes=[1], input_shapes=shapes, wait=True)
        inputs = WHOLE_MODEL.inputs(1)
        _compare(client, "whole", WHOLE_MODEL.path, inputs)
        client.delete("whole")


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=pytest.mark.ci if name == "squeezenet" else pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_a_network_in_both_formats_answers_like_onnxruntime(
    shared: ServerProcess, tmp_path: Path, network: str
) -> None:
    paths = {
        "onnx": export_onnx(network, tmp_path / "network.onnx"),
        "pt2": export_pt2(network, tmp_path / "network.pt2"),
    }
    names = NETWORKS[network].input_names
    assert tuple(paths) == FORMATS

    with shared.client() as client:
        for kind, path in paths.items():
            client.register(kind, path, batch_sizes=[1, 4], planner="sequential", wait=True)
        for batch in BATCHES:
            tensors = NETWORKS[network].example_inputs(batch, seed=batch)
            inputs = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
            (wanted,) = _compare(client, "onnx", paths["onnx"], inputs).values()
            _same(client.infer("pt2", inputs).outputs, {"output": wanted})
        for kind in paths:
            client.delete(kind)


def _compare(client: Client, name: str, path: Path, inputs: Arrays) -> Arrays:
    """Check the service's answer; returns onnxruntime's."""
    got = client.infer(name, inputs).outputs
    expected = _expected(path, inputs, {key: array.shape for key, array in got.items()})
    _same(got, expected)
    return expected


def _expected(path: Path, inputs: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """onnxruntime's outputs; row by row if the file fixes batch 1, joined where rows are."""
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    rows = len(next(iter(inputs.values())))
    if rows == 1 or session.get_inputs()[0].shape[0] != 1:
        return dict(zip(names, session.run(None, dict(inputs)), strict=True))
    singles = [
        session.run(None, {key: value[row : row + 1] for key, value in inputs.items()})
        for row in range(rows)
    ]
    joined = {}
    for name, parts in zip(names, zip(*singles, strict=True), strict=True):
        differs = [a != b for a, b in zip(parts[0].shape, shapes[name], strict=True)]
        joined[name] = np.concatenate(parts, axis=differs.index(True))
    return joined


def _same(got: Mapping[str, Any], expected: Arrays) -> None:
    assert set(got) == set(expected)
    for name, array in expected.items():
        want = np.asarray(array, np.float64)
        if array.dtype.kind in "iub":  # the position of a maximum
            assert np.mean(got[name] != array) <= 0.01, name
            continue
        scale = np.abs(want).max()
        np.testing.assert_allclose(got[name], want, rtol=0, atol=TOLERANCE * scale, err_msg=name)
