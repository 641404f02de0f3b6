"""Bringing a database to this version's tables.

nothing there ──> all tables of today, stamped with HEAD
an older one  ──> alembic runs the steps of ``migrations``; it is imported for nothing else
a newer one   ──> opens if only things were added, see ``migrations``
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    insert,
    inspect,
    text,
    update,
)

from braid.core.errors import StartupError
from braid.server.store.tables.schema import SCHEMA_VERSION, meta, metadata

log = logging.getLogger("braid.store")

T = TypeVar("T")

MIGRATIONS = Path(__file__).with_name("migrations")
REVISIONS = ("0001", "0002", "0003")
"""Steps of ``migrations`` in their order; the last one is what today's tables are."""

_CONVERTED = (1, 2, SCHEMA_VERSION)
"""Values of ``meta.schema_version`` that can be read."""

_LOCK = 0x6272616964
"""Key of the lock of PostgreSQL that a server holds while it changes the tables."""

alembic_version = Table(
    "alembic_version", MetaData(), Column("version_num", String(32), primary_key=True)
)


@dataclass(frozen=True, slots=True)
class MigrationSteps:
    """Steps of a version of Braid: where they lie, and their revisions in order."""

    folder: Path = MIGRATIONS
    revisions: tuple[str, ...] = REVISIONS

    def are_missing(self, revision: str | None) -> bool:
        """True if a database of this revision lacks some; None: it is older than revisions."""
        return revision is None or revision in self.revisions[:-1]


def bring_up_to_date(engine: Engine, steps: MigrationSteps | None = None) -> str:
    """Create what is missing, convert what is older; returns the revision of the database.

    Several servers may do this at once: one does, the others wait.

    Raises:
        StartupError: the database is newer than this program, or lacks tables.
    """
    is_shared = engine.dialect.name == "postgresql"
    if is_shared:  # a snapshot would be older than the lock
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    with engine.begin() as connection:
        if is_shared:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        revision = _bring_up_to_date(connection, steps or MigrationSteps())
        _check_tables(connection)
        return revision


def _bring_up_to_date(connection: Connection, steps: MigrationSteps) -> str:
    tables = inspect(connection).get_table_names()
    found = _only(connection, meta.c.schema_version) if meta.name in tables else None
    if found is None:
        if ours := sorted({*tables} & {*metadata.tables}):
            raise StartupError(
                f"the store's database {connection.engine.url} has {', '.join(ours)}, but no "
                f"{meta.name} that says of which version: it is damaged or another program's; "
                "restore it from a backup, or choose another with BRAID_DATABASE"
            )
        return _create(connection)
    if not isinstance(found, int):
        raise StartupError(
            f"the store's database {connection.engine.url} is damaged (schema {str(found)[:20]!r})"
            "; restore it from a backup"
        )
    if found not in _CONVERTED:
        raise StartupError(
            f"the store's database {connection.engine.url} has schema {found}, this version of "
            f"Braid reads {SCHEMA_VERSION}; run a newer Braid or choose another BRAID_STORE"
        )
    is_stamped = alembic_version.name in tables
    before = _only(connection, alembic_version.c.version_num) if is_stamped else None
    if before is None or steps.are_missing(before):
        _run(connection, steps)
        connection.execute(update(meta).values(schema_version=SCHEMA_VERSION))
        facts = {"before": before or f"schema {found}", "now": steps.revisions[-1]}
        log.info("the database was converted", extra=facts)
        return steps.revisions[-1]
    if before != steps.revisions[-1]:
        log.info("the database is of a newer version", extra={"revision": before})
    return str(before)


def _check_tables(connection: Connection) -> None:
    """Raise StartupError unless all tables of today and their columns are there."""
    found = {
        name: {column["name"] for column in columns}
        for (_, name), columns in inspect(connection).get_multi_columns().items()
    }
    lost = [
        f"{table.name}.{column.name}" if table.name in found else table.name
        for table in metadata.sorted_tables
        for column in table.columns
        if column.name not in found.get(table.name, ())
    ]
    if lost:
        raise StartupError(
            f"the store's database {connection.engine.url} is damaged: it lacks "
            f"{', '.join(dict.fromkeys(lost))}; restore it from a backup"
        )


def _only(connection: Connection, column: Column[T]) -> T | None:
    """Value in a table of one row; by its text, as a statement is compiled for each engine."""
    asked = connection.exec_driver_sql(f"SELECT {column.name} FROM {column.table.name}")
    value: T | None = asked.scalar()
    return value


def _create(connection: Connection) -> str:
    """Make all tables of today."""
    metadata.create_all(connection)
    alembic_version.create(connection, checkfirst=True)
    connection.execute(insert(meta).values(schema_version=SCHEMA_VERSION))
    connection.execute(insert(alembic_version).values(version_num=REVISIONS[-1]))
    return REVISIONS[-1]


def _run(connection: Connection, steps: MigrationSteps) -> None:
    """Run the steps that the database lacks, in the transaction of ``connection``."""
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(steps.folder), version_locations=[str(steps.folder)])
    with EnvironmentContext(
        Config(), script, fn=lambda before, _: script._upgrade_revs("head", before)
    ) as environment:
        environment.configure(connection=connection)
        environment.run_migrations()
