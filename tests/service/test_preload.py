"""Models registered at start, and the health command of containers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from braid.core.errors import StartupError
from braid.server.cli.main import main
from braid.server.models.preload import model_file
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess


@pytest.mark.slow
def test_models_named_at_start_serve_once_the_server_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    small_cnn(folder / "model.onnx")
    server = ServerProcess(tmp_path / "store", BRAID_PRELOAD=f"cnn={folder}").start()
    try:
        with server.client() as client:
            assert client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)}).version == "1"
        address = ("--address", server.address)
        assert main(["health", *address]) == 0
        assert main(["health", "--service", "cnn", *address]) == 0
        assert main(["health", "--service", "none", *address]) == 1
    finally:
        server.end()
    assert main(["health", *address]) == 1
    out, err = capsys.readouterr()
    assert out == "serving\nserving\n"
    assert err.splitlines()[0].endswith("not found")


def test_a_folder_must_hold_one_model(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"0 \.onnx files"):
        model_file("a=b", str(tmp_path))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.onnx").touch()
    assert model_file("a=b", str(tmp_path)) == tmp_path / "sub/a.onnx"
    (tmp_path / "b.onnx").touch()
    with pytest.raises(StartupError, match=r"2 \.onnx files"):
        model_file("a=b", str(tmp_path))
