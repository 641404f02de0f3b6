"""A store on real files, with each kind of database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from braid.server.fleet.store import FleetStore
from braid.server.store.database.opening import is_shared
from braid.server.store.store import Store
from tests.server.store.databases import SharedDatabases


@pytest.fixture(scope="session")
def shared_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDatabases]:
    databases = SharedDatabases(tmp_path_factory.mktemp("postgresql") / "cluster")
    yield databases
    databases.close()


@pytest.fixture
def shared_database(shared_databases: SharedDatabases) -> URL:
    """An empty database that several servers may use."""
    return shared_databases.make()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    if request.param == "sqlite":
        return URL.create("sqlite", database=str(tmp_path / "braid.db"))
    made: URL = request.getfixturevalue("shared_database")
    return made


@pytest.fixture
def store(tmp_path: Path, database: URL) -> Iterator[Store]:
    """A store on each kind of database."""
    store_type = FleetStore if is_shared(database) else Store
    store = store_type.open(tmp_path / "store", database=database)
    yield store
    store.close()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    """A store as by default."""
    store = Store.open(tmp_path / "store")
    yield store
    store.close()
