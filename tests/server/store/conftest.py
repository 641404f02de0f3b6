"""A store on real files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from braid.server.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "store")
    yield store
    store.close()
