"""Bringing a database to this version's tables.

nothing there ──> all tables of today, stamped with REVISION
a newer one   ──> opens if only tables, columns with a default and indexes were added
an older one  ──> is refused

A change that servers of the version before cannot live with raises ``schema_version``, and they
refuse the database. Changes of columns of released versions will be steps of alembic, whose table
of revisions this is.
"""

import logging
from typing import TypeVar

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, insert, inspect, text

from braid.core.errors import StartupError
from braid.server.store.tables.schema import SCHEMA_VERSION, meta, metadata

log = logging.getLogger("braid.store")

T = TypeVar("T")

REVISION = "0004"
"""Revision of today's tables."""
_TOO_OLD = (None, "0001", "0002", "0003")

_LOCK = 0x6272616964
"""Key of the lock of PostgreSQL that a server holds while it changes the tables."""

alembic_version = Table(
    "alembic_version", MetaData(), Column("version_num", String(32), primary_key=True)
)


def bring_up_to_date(engine: Engine) -> str:
    """Create what is missing; returns the revision of the database.

    Several servers may do this at once: one does, the others wait. Raises StartupError: the
    database is newer or older than this program reads, or lacks tables.
    """
    is_shared = engine.dialect.name == "postgresql"
    if is_shared:  # a snapshot would be older than the lock
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    with engine.begin() as connection:
        if is_shared:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        revision = _bring_up_to_date(connection)
        _check_tables(connection)
        return revision


def _bring_up_to_date(connection: Connection) -> str:
    tables = inspect(connection).get_table_names()
    schema = _only(connection, meta.c.schema_version) if meta.name in tables else None
    database = f"the store's database {connection.engine.url}"
    if schema is None:
        if ours := sorted({*tables} & {*metadata.tables}):
            raise StartupError(
                f"{database} has {', '.join(ours)}, but no "
                f"{meta.name} that says of which version: it is damaged or another program's; "
                "restore it from a backup, or choose another with BRAID_DATABASE"
            )
        return _create(connection)
    if not isinstance(schema, int):
        raise StartupError(
            f"{database} is damaged (schema {str(schema)[:20]!r}); restore it from a backup"
        )
    if schema > SCHEMA_VERSION:
        raise StartupError(
            f"{database} has schema {schema}, this version of Braid reads {SCHEMA_VERSION}; run a "
            "newer Braid or choose another BRAID_STORE"
        )
    is_stamped = alembic_version.name in tables
    revision = _only(connection, alembic_version.c.version_num) if is_stamped else None
    if schema < SCHEMA_VERSION or revision in _TOO_OLD:
        raise StartupError(
            f"{database} is of an unreleased version of Braid that is too old (schema {schema}, "
            f"revision {revision or 'none'}; the oldest that is read is {REVISION}); choose "
            "another BRAID_STORE and register its models again"
        )
    if revision != REVISION:
        log.info("the database is of a newer version", extra={"revision": revision})
    return str(revision)


def _check_tables(connection: Connection) -> None:
    """Raise StartupError unless all tables of today and their columns are there."""
    columns_of = {
        name: {column["name"] for column in columns}
        for (_, name), columns in inspect(connection).get_multi_columns().items()
    }
    lost = [
        f"{table.name}.{column.name}" if table.name in columns_of else table.name
        for table in metadata.sorted_tables
        for column in table.columns
        if column.name not in columns_of.get(table.name, ())
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
    metadata.create_all(connection)
    alembic_version.create(connection, checkfirst=True)
    connection.execute(insert(meta).values(schema_version=SCHEMA_VERSION))
    connection.execute(insert(alembic_version).values(version_num=REVISION))
    return REVISION
