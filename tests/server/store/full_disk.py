import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import event

from braid.server.store.store import Store


@contextmanager
def taking_no_commits(store: Store, name: str = "SQLITE_FULL") -> Iterator[None]:
    """Let SQLite refuse every commit as it does on a disk that is full, read-only or failing."""

    def refuse(_: Any) -> None:
        error = sqlite3.OperationalError("refused")
        error.sqlite_errorname = name
        raise sqlalchemy.exc.OperationalError("COMMIT", {}, error)

    event.listen(store._database.engine, "commit", refuse)
    try:
        yield
    finally:
        event.remove(store._database.engine, "commit", refuse)
