"""One compiled network for the tests that only call it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import braid
from braid.engine.importer.host.report import file_digest
from tests.engine.importer.running import import_here
from tests.models.small import small_cnn


def import_ahead(model: Path, store: Path) -> Path:
    """Make the artefact that compiling a file would, without a process for it; returns the file.

    For tests that are not about imports: 20 ms instead of 2.5 s.
    """
    artefact = store / "compiled" / file_digest(model)
    artefact.parent.mkdir(parents=True, exist_ok=True)
    if not artefact.exists():
        import_here(model, artefact)
    return model


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
