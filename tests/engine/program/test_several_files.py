"""Models in several files, and errors of their files."""

import os
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from braid.core.errors import InvalidArtefact
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.device import open_whole
from braid.engine.program.model_file import opened_file, reason_of
from braid_client.external_data import ModelFile, with_its_data
from tests.engine.importer.running import import_here
from tests.models.external_data import in_several_files


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models are unpacked."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def imported(file: ModelFile, folder: Path) -> Path:
    """The artefact of a file that is sent as one."""
    (folder / "upload").write_bytes(b"".join(file.chunks()))
    return import_here(folder / "upload", folder / "artefact")


@pytest.mark.parametrize("names", [["model.onnx.data"], ["a.bin", "data/b.bin"]])
def test_runtimes_open_what_the_import_kept_of_a_model_in_several_files(
    tmp_path: Path, unpacked: Path, names: list[str]
) -> None:
    (tmp_path / "given").mkdir()
    file = with_its_data(in_several_files(tmp_path / "given", "model.onnx", *names))
    artefact = imported(file, tmp_path)
    x = np.random.default_rng(1).standard_normal((3, 3, 16, 16)).astype(np.float32)
    expected = onnxruntime.InferenceSession(str(file.model)).run(None, {"x": x})[0]

    backend = CpuBackend(CpuExecutor(threads=1))
    for runtime in backend.runtimes:
        whole = open_whole(backend, runtime, artefact, file.digest())
        assert not os.listdir(unpacked)
        answer = whole.run({"x": x})["y"]
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)
    backend.close()


def test_a_zip_that_was_changed_is_not_opened(tmp_path: Path, unpacked: Path) -> None:
    (tmp_path / "given").mkdir()
    file = with_its_data(in_several_files(tmp_path / "given", "model.onnx", "w.bin"))
    artefact = imported(file, tmp_path)
    with (artefact / "model.onnx").open("r+b") as kept:
        kept.seek(200)
        kept.write(b"x")

    with pytest.raises(InvalidArtefact, match="changed"), opened_file(artefact, file.digest()):
        pass
    assert not os.listdir(unpacked)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Exception from src/inference/core.cpp:109:\nException from src/plugin.cpp:52:\n"
            "Check 'is_static' failed at src/node.cpp:7:\nthe rank is open\n\nand more",
            "Check 'is_static' failed at src/node.cpp:7: the rank is open",
        ),
        ("[ONNXRuntimeError] : 9 : no kernel\nat line 3", "[ONNXRuntimeError] : 9 : no kernel"),
        ("Exception from src/core.cpp:1:", "Exception from src/core.cpp:1:"),
        ("", "ValueError"),
    ],
)
def test_the_reason_is_whole_and_one_line(said: str, reason: str) -> None:
    assert reason_of(ValueError(said)) == reason
