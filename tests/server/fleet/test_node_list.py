import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL

from braid.server.fleet.store import FleetStore
from braid.server.jobs.node_list import NodeList
from braid.server.settings import Settings
from braid.server.store.records import NodeRecord

DEVICES = "cpu:X:threads=1 | cpu:X:threads=2"
DATABASE = "postgresql+psycopg://braid@nowhere/braid"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


@pytest.fixture
def store(tmp_path: Path, database: Path) -> Iterator[FleetStore]:
    """A store on a database of its own, which is that of one node after the other."""
    url = URL.create("sqlite", database=str(database))
    store = FleetStore.open(tmp_path / "store", database=url)
    yield store
    store.close()


async def test_nodes_are_listed_with_their_jobs_and_the_age_of_their_beats(
    store: FleetStore, database: Path
) -> None:
    for node, names in (("b", ("job:2", "job:3")), ("a", ("job:1", "schedule:x"))):
        store.join(NodeRecord(node, f"{node}:8001", DEVICES, "1.0"), 60.0)
        assert all(store.acquire(name) for name in names)
    # b has not beaten for long, and lost job 3
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE nodes SET beat_at = beat_at - 1000 WHERE id = 'b'")
        connection.execute("UPDATE leases SET expires_at = 0 WHERE name = 'job:3'")
    settings = Settings(database=DATABASE, files="s3://x", node_name="a")  # type: ignore[arg-type]

    first, second = await NodeList(store, settings, str, int).nodes()

    assert (first.node.id, first.node.address, first.job_ids) == ("a", "a:8001", ("1",))
    assert first.device_keys == ["cpu:X:threads=1", "cpu:X:threads=2"]
    assert (first.node.is_alive, first.is_this) == (True, True)
    assert (second.node.id, second.job_ids) == ("b", ("2",))
    assert (second.node.is_alive, second.is_this) == (False, False)
    assert first.beat_age_s < 1000 <= second.beat_age_s < 2000
