"""Versions whose padded requests were answered wrongly.

Every function runs inside the caller's transaction. Servers that share the database read the same
rows.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from braid.server.store.records import ModelVersion
from braid.server.store.tables.dialects import put_row
from braid.server.store.tables.schema import lengths


def failure(connection: Connection, model: ModelVersion) -> str:
    """Why no request of a version with these bytes is padded any more; "" if they are."""
    row = connection.execute(
        select(lengths).where(lengths.c.name == model.name, lengths.c.version == model.version)
    ).first()
    if row is None or row.sha256 != model.sha256:
        return ""
    return str(row.seen.get("padding_failure", ""))


def refuse(connection: Connection, model: ModelVersion, reason: str) -> None:
    """Store why no request of a version is padded any more; the first reason stays."""
    seen = {"padding_failure": failure(connection, model) or reason}
    row = {"name": model.name, "version": model.version, "sha256": model.sha256, "seen": seen}
    put_row(connection, lengths, row)


def forget(connection: Connection, name: str, version: int) -> None:
    connection.execute(delete(lengths).where(lengths.c.name == name, lengths.c.version == version))
