"""A job server over fakes and a real store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.jobs.fakes import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "store")
    await server.runner.start()
    yield server
    await server.stop()
