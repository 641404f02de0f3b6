"""Files that the database was told of, with the rows that needed them first.

Every function runs inside the caller's transaction. A file whose digest is not among them is not
this database's to remove: the database may be new, restored from an older backup, or the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, select, union

from braid.server.store.tables.dialects import put_row
from braid.server.store.tables.schema import digests, models

_OF_MODELS = select(models.c.sha256).distinct()


def remember(connection: Connection, files: Iterable[str]) -> None:
    for sha256 in files:
        put_row(connection, digests, {"sha256": sha256})


def known(connection: Connection) -> set[str]:
    return set(connection.scalars(union(select(digests.c.sha256), _OF_MODELS)))
