"""Transactions of a store's database.

Writers see the database as if there were no other: SQLite gives them a lock at their begin, and
PostgreSQL runs them SERIALIZABLE, as their changes rest on what they read (the versions of a name,
the jobs of a model). Readers see one moment of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from braid.server.store.database.failures import (
    SharedWatch,
    is_lost,
    may_repeat,
    stood_still,
    was_silent,
)
from braid.server.store.disk import DiskWatch

REPEAT_SECONDS = 5.0
"""A transaction is begun again for so long after it began first."""

LEAST_TRIES = 3
"""A transaction is tried so often even if that takes longer: this process may have stood still."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1

READING = "braid_reading"
"""Execution option of transactions that are rolled back."""

T = TypeVar("T")
Change = Callable[[Connection], T]


class Database:
    """Engine of a store's database, and what happens to its errors. For all threads."""

    def __init__(self, engine: Engine, readers: Engine, watch: DiskWatch | SharedWatch) -> None:
        self.engine = engine
        self._readers = readers
        self._watch = watch
        self.is_shared = engine.dialect.name == "postgresql"

    def read(self, query: Change[T]) -> T:
        """Return what ``query`` finds at one moment. Raises DiskFailure or StoreUnavailable."""
        with self._watch.reading():
            return self._repeated(query, self._read_once)

    def write(self, change: Change[T]) -> T:
        """Make a change as a whole or not at all; on disk when this returns.

        ``change`` may run several times, each time in a transaction of its own. Raises DiskFailure
        or StoreUnavailable, which at the commit does not tell whether the change was made.
        """
        with self._watch.writing():
            return self._repeated(change, self._write_once)

    def _read_once(self, query: Change[T], _: _Attempt) -> T:
        with self._readers.connect() as connection:
            result = query(connection)
            connection.rollback()
            return result

    def _write_once(self, change: Change[T], attempt: _Attempt) -> T:
        attempt.is_committing = False
        with self.engine.begin() as connection:
            result = change(connection)
            attempt.is_committing = True
            return result

    def _repeated(self, change: Change[T], run: Callable[[Change[T], _Attempt], T]) -> T:
        """Run a transaction until no other stands in its way; once more after a lost connection.

        One that was ended because this process stood still for too long is run again, too. That may
        look like a lost connection: only a server that was silent is not asked again late.
        """
        if not self.is_shared:
            return run(change, _Attempt())
        began, pause_s, attempt = time.monotonic(), FIRST_PAUSE_S, _Attempt()
        while True:
            try:
                return run(change, attempt)
            except DBAPIError as error:
                if not attempt.may_repeat(error, time.monotonic() - began):
                    raise
            time.sleep(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        self.engine.dispose()


class _Attempt:
    """How far a transaction that may be run again has come."""

    def __init__(self) -> None:
        self.is_committing = False
        self._tries = 0
        self._was_lost = False

    def may_repeat(self, error: DBAPIError, seconds: float) -> bool:
        """True if nothing was changed, and a try ``seconds`` after the first may go better."""
        self._tries += 1
        is_in_time = seconds < REPEAT_SECONDS
        if not is_lost(error):
            may_succeed = may_repeat(error) or stood_still(error)
            return may_succeed and (is_in_time or self._tries < LEAST_TRIES)
        is_first, self._was_lost = not self._was_lost, True
        was_there = error.connection_invalidated
        may_answer = is_in_time or not was_silent(error)
        return is_first and may_answer and was_there and not self.is_committing
