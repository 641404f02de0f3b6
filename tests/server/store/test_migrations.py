"""Versions of the database's tables: older ones are converted, newer additions are lived with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, create_engine

from braid.core.errors import StartupError
from braid.server.cli.main import main
from braid.server.store.database.migrating import (
    MIGRATIONS,
    REVISIONS,
    MigrationSteps,
    bring_up_to_date,
)
from braid.server.store.store import Store
from braid.server.store.tables.schema import metadata
from tests.server.store.databases import SharedDatabases, execute, exit_codes, url_of
from tests.server.store.registering import register

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{before}"


def upgrade():
    op.add_column("models", sa.Column("colour", sa.Text, nullable=False, server_default="red"))
    op.create_table("colours", sa.Column("name", sa.String(10), primary_key=True))
"""
"""Additions of a version of Braid that is not there yet."""


@pytest.fixture
def next_version(tmp_path: Path) -> MigrationSteps:
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    (folder / "v9999_colours.py").write_text(NEXT.format(before=REVISIONS[-1]))
    return MigrationSteps(folder, (*REVISIONS, "9999"))


def upgrade(url: URL, steps: MigrationSteps | None = None) -> str:
    engine = create_engine(url)
    try:
        return bring_up_to_date(engine, steps)
    finally:
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A database of each kind without any table."""
    if request.param == "sqlite":
        return URL.create("sqlite", database=str(tmp_path / "empty.db"))
    shared: SharedDatabases = request.getfixturevalue("shared_databases")
    return shared.make(with_tables=False)


def test_the_steps_end_where_the_tables_are() -> None:
    script = ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])

    assert [step.revision for step in script.walk_revisions()][::-1] == list(REVISIONS)


def test_steps_from_nothing_make_the_tables_of_today(empty: URL) -> None:
    execute(empty, "CREATE TABLE meta (schema_version INTEGER NOT NULL)")
    execute(empty, "INSERT INTO meta VALUES (1)")

    assert upgrade(empty) == REVISIONS[-1]

    engine = create_engine(empty)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, metadata)
    engine.dispose()
    if empty.get_backend_name() == "sqlite":  # whose integers all have 64 bits
        differences = [each for each in differences if "size_bytes" not in str(each)]
    assert differences == []


def test_an_empty_database_gets_the_tables_of_today_at_once(empty: URL) -> None:
    assert upgrade(empty) == REVISIONS[-1]
    assert upgrade(empty) == REVISIONS[-1]

    assert execute(empty, "SELECT schema_version FROM meta") == [(3,)]


def test_a_store_of_schema_3_without_revision_keeps_what_it_has(store: Store) -> None:
    register(store)
    store.close()
    url, old = url_of(store), ("nodes", "leases", "objects", "alembic_version")
    execute(url, *(f"DROP TABLE {name}" for name in old))
    execute(
        url, *(f"ALTER TABLE jobs DROP COLUMN {name}" for name in ("cancel_requested", "tries"))
    )

    store = Store.open(store.folder.root, database=url)

    assert [(model.name, model.size_bytes) for model in store.models()] == [("lenet", 7)]
    assert execute(url, "SELECT cancel_requested, tries FROM jobs") == [(False, 0)]
    assert execute(url, "SELECT count(*) FROM leases") == [(0,)]
    store.close()


def test_this_version_works_on_a_database_that_the_next_one_added_to(
    store: Store, next_version: MigrationSteps
) -> None:
    register(store, "before")

    assert upgrade(url_of(store), next_version) == "9999"  # while this version's server runs

    register(store, "during")
    store.close()
    store = Store.open(store.folder.root, database=url_of(store))
    register(store, "after")
    assert [model.name for model in store.models()] == ["after", "before", "during"]
    assert execute(url_of(store), "SELECT DISTINCT colour FROM models") == [("red",)]
    assert execute(url_of(store), "SELECT version_num FROM alembic_version") == [("9999",)]
    store.close()


def test_an_incompatible_database_is_refused_in_one_line(store: Store) -> None:
    store.close()
    execute(url_of(store), "UPDATE meta SET schema_version = 4")

    with pytest.raises(StartupError, match=r"has schema 4, .* reads 3; run a newer") as caught:
        Store.open(store.folder.root, database=url_of(store))

    message = str(caught.value)
    assert "\n" not in message
    assert (url_of(store).password or "no password") not in message


def test_many_processes_open_an_empty_database_at_once(
    shared_databases: SharedDatabases,
) -> None:
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

    assert capsys.readouterr().out.count(f"up to date (revision {REVISIONS[-1]})") == 2
