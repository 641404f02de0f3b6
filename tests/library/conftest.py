"""One compiled network for the tests that only call it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import braid
from tests.models.small import small_cnn


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model file of a small network with branches: x [batch, 3, 16, 16] to y."""
    return small_cnn(tmp_path_factory.mktemp("library") / "cnn.onnx")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of schedules and measurements, which all tests share."""
    return tmp_path_factory.mktemp("library") / "store"


@pytest.fixture(scope="session")
def net(model: Path, store: Path) -> Iterator[braid.Network]:
    """The model, compiled for batch sizes 1 and 4."""
    with braid.compile(model, batch_sizes=[1, 4], store=store) as network:
        yield network
