"""Statements that SQLite and PostgreSQL write differently: replaced rows, and the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Float, Table, literal_column
from sqlalchemy.dialects import sqlite

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql


def put_row(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Store a row in place of the one with its key; columns not in ``row`` stay as they were."""
    keys = [column.name for column in table.primary_key]
    others = {name: value for name, value in row.items() if name not in keys}
    insert = insert_into(connection, table).values(**row)
    if others:
        connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=others))
    else:
        connection.execute(insert.on_conflict_do_nothing(index_elements=keys))


def now(connection: Connection) -> ColumnElement[float]:
    """Expression of the database's clock: seconds since 1970, also within a transaction."""
    if connection.dialect.name == "postgresql":
        return literal_column("extract(epoch from clock_timestamp())::float8", Float)
    return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Float)


def insert_into(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Make an insert that may have a clause ON CONFLICT, in the dialect of the connection."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # takes a while, and SQLite needs none of it

    return postgresql.insert(table)
