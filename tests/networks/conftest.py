from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.networks.export import export_onnx


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a network's ONNX file, exported at its first use."""
    folder = tmp_path_factory.mktemp("networks")

    def path_of(name: str) -> Path:
        path = folder / f"{name}.onnx"
        return path if path.exists() else export_onnx(name, path)

    return path_of
