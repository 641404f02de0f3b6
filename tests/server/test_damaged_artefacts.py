"""Artefacts damaged on the disk: noticed when they are loaded, shown, repaired by the same file."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from braid_client import Client, FailedPrecondition
from tests.server.service import ServerProcess
from tests.server.small_models import embedding, identity, small_cnn

INPUTS: dict[str, dict[str, NDArray[Any]]] = {
    "cnn": {"x": np.ones((1, 3, 16, 16), np.float32)},
    "rows": {"ids": np.ones((1, 4), np.int64)},
    "same": {"x": np.ones((1, 3), np.float32)},
}


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def state_of(client: Client, name: str) -> tuple[str, str]:
    model = client.model(name)
    return model.state.name, model.message


def test_a_damaged_model_says_so_and_is_repaired_by_its_file(
    server: ServerProcess, tmp_path: Path
) -> None:
    server.start()
    files = {
        "cnn": small_cnn(tmp_path / "cnn.onnx"),
        "rows": embedding(tmp_path / "rows.onnx"),
        "same": identity(tmp_path / "same.onnx"),
    }
    artefacts = {
        name: server.store / "artefacts" / sha256(file.read_bytes()).hexdigest()
        for name, file in files.items()
    }
    server.import_ahead(*files.values())
    with server.client() as client:
        for name, file in files.items():
            client.register(name, file, planner="sequential", wait=True)
        answers = {name: client.infer(name, INPUTS[name]).outputs for name in files}
    server.stop()
    flip_a_byte(artefacts["cnn"] / "weights.safetensors")
    shutil.rmtree(artefacts["rows"])

    server.start()
    with server.client() as client:
        states = {name: state_of(client, name) for name in files}
        with pytest.raises(FailedPrecondition, match=r"damaged.*register the same file again"):
            client.infer("cnn", INPUTS["cnn"])
        client.infer("same", INPUTS["same"])
        repaired = client.register("cnn", files["cnn"], planner="sequential", wait=True)
        elsewhere = client.register("rows2", files["rows"], planner="sequential", wait=True)
        client.register("rows", files["rows"], planner="sequential", wait=True)
        after = {name: client.infer(name, INPUTS[name]).outputs for name in files}
        known = [(model.name, model.version, model.state.name) for model in client.models()]

    assert states["same"] == ("SERVING", "")
    assert states["cnn"][0] == states["rows"][0] == "FAILED"
    assert "weights.safetensors was changed" in states["cnn"][1]
    assert "cannot be read" in states["rows"][1]
    assert (repaired.version, elsewhere.version) == ("1", "1")
    assert known == [(name, "1", "SERVING") for name in ("cnn", "rows", "rows2", "same")]
    for name, outputs in answers.items():
        for output, array in outputs.items():
            np.testing.assert_allclose(after[name][output], array, rtol=1e-4, atol=1e-5)
