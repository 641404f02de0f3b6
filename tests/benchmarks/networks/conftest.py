from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.networks.export import export_onnx


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Keep the spinning threads of torch and ONNX Runtime from fighting over a few busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a network's ONNX file, exported at its first use."""
    folder = tmp_path_factory.mktemp("networks")

    def path_of(name: str) -> Path:
        path = folder / f"{name}.onnx"
        return path if path.exists() else export_onnx(name, path)

    return path_of
