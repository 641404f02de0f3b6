import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, inspect

from braid.core.errors import StartupError
from braid.server.cli.main import main
from braid.server.store.database.migrating import REVISION, bring_up_to_date
from braid.server.store.store import Store
from tests.server.store.databases import SharedDatabases, execute, exit_codes, url_of
from tests.server.store.registering import register

NEXT = (
    "ALTER TABLE models ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'",
    "CREATE TABLE colours (name VARCHAR(10) PRIMARY KEY)",
    "UPDATE alembic_version SET version_num = '9999'",
)
"""Additions of a version of Braid that is not there yet."""

STAMP = "UPDATE alembic_version SET version_num = {!r}"


def upgrade(url: URL) -> str:
    engine = create_engine(url)
    try:
        return bring_up_to_date(engine)
    finally:
        engine.dispose()


def tables_of(url: URL) -> dict[str, object]:
    """Columns with their types, keys and indexes of all tables."""
    engine = create_engine(url)
    inspected = inspect(engine)
    tables: dict[str, object] = {
        name: (
            {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in inspected.get_columns(name)
            },
            inspected.get_pk_constraint(name)["constrained_columns"],
            sorted(str(index["column_names"]) for index in inspected.get_indexes(name)),
            [unique["column_names"] for unique in inspected.get_unique_constraints(name)],
        )
        for name in inspected.get_table_names()
    }
    engine.dispose()
    return tables


@pytest.fixture(params=["sqlite", "postgresql"])
def make_empty(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], URL]:
    """Makes databases of each kind without any table."""
    if request.param == "sqlite":
        numbers = count()
        return lambda: URL.create("sqlite", database=str(tmp_path / f"empty_{next(numbers)}.db"))
    shared: SharedDatabases = request.getfixturevalue("shared_databases")
    return lambda: shared.make(with_tables=False)


@pytest.fixture
def empty(make_empty: Callable[[], URL]) -> URL:
    return make_empty()


def test_a_store_opens_on_a_database_that_a9f91505_left(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    stored = (Path(__file__).parent / "database_0004.sql").read_text()
    with closing(sqlite3.connect(folder / "braid.db")) as database:
        database.executescript(stored)

    store = Store.open(folder)

    assert [(model.name, model.version, model.state.name) for model in store.models()] == [
        ("cnn", 1, "SERVING"),
        ("cnn", 2, "SERVING"),
    ]
    assert register(store, "after").model.version == 1
    store.close()


def test_an_empty_database_gets_the_tables_of_today_at_once(empty: URL) -> None:
    assert upgrade(empty) == REVISION
    assert upgrade(empty) == REVISION

    assert execute(empty, "SELECT schema_version FROM meta") == [(3,)]


TOO_OLD = r"too old .* the oldest that is read is 0004"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE meta SET schema_version = 1", TOO_OLD),
        ("UPDATE meta SET schema_version = 2", TOO_OLD),
        (STAMP.format("0001"), TOO_OLD),
        (STAMP.format("0003"), TOO_OLD),
        ("DROP TABLE alembic_version", TOO_OLD),
        ("UPDATE meta SET schema_version = 4", r"has schema 4, .* reads 3; run a newer"),
    ],
)
def test_a_database_of_another_age_is_refused_unchanged(
    store: Store, change: str, message: str
) -> None:
    register(store)
    store.close()
    url = url_of(store)
    execute(url, change)
    before = tables_of(url)

    with pytest.raises(StartupError, match=message) as caught:
        Store.open(store.folder.root, database=url)

    assert "\n" not in str(caught.value)
    assert (url.password or "no password") not in str(caught.value)
    assert tables_of(url) == before
    assert execute(url, "SELECT name FROM models") == [("lenet",)]


def test_this_version_works_on_a_database_that_the_next_one_added_to(store: Store) -> None:
    register(store, "before")

    execute(url_of(store), *NEXT)  # while this version's server runs

    register(store, "during")
    store.close()
    store = Store.open(store.folder.root, database=url_of(store))
    register(store, "after")
    assert [model.name for model in store.models()] == ["after", "before", "during"]
    assert execute(url_of(store), "SELECT DISTINCT colour FROM models") == [("red",)]
    assert execute(url_of(store), "SELECT version_num FROM alembic_version") == [("9999",)]
    store.close()


def test_many_processes_open_an_empty_database_at_once(shared_databases: SharedDatabases) -> None:
    url = shared_databases.make(with_tables=False)

    assert exit_codes(upgrade, [(url,)] * 8) == [0] * 8

    assert execute(url, "SELECT count(*) FROM meta") == [(1,)]


def test_braid_database_upgrade(
    empty: URL, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("BRAID_FILES", "s3://fleet" if "postgresql" in empty.drivername else "")

    text = empty.render_as_string(hide_password=False)
    assert main(["database", "upgrade", "--database", text]) == 0
    assert main(["database", "upgrade", "--database", text]) == 0

    assert capsys.readouterr().out.count(f"up to date (revision {REVISION})") == 2
