"""One server for the tests that only ask, and a fresh one for those that break things."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.small import embedding, small_cnn
from tests.service.server_process import BRAID, ServerProcess, serving


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "cnn": small_cnn(folder / "cnn.onnx"),
        "embedding": embedding(folder / "embedding.onnx"),
    }


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]
) -> Iterator[ServerProcess]:
    """A server with every model of ``models`` registered, batch sizes 1 and 4."""
    store = tmp_path_factory.mktemp("shared") / "store"
    server = ServerProcess(store, command=BRAID).start()
    with serving(server, models):
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with an empty store, not started, whose CPU measures in the serving worker."""
    with ServerProcess(tmp_path / "store") as server:
        yield server


@pytest.fixture
def braid(tmp_path: Path) -> Iterator[ServerProcess]:
    """``braid serve`` as users run it: registrations measure in a process of their own."""
    with ServerProcess(tmp_path / "store", command=BRAID) as server:
        yield server
