"""Failures of a shared database: one error for callers, one line in the log.

A SQLite database lies on a disk of the server: ``braid.server.store.disk`` knows its failures.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from braid.core.errors import BraidError, DatabaseUnavailable, DiskFailure, DiskTrouble

log = logging.getLogger("braid.store")

REST_SECONDS = 1.0
"""After a connection failed, calls fail at once for so long: they do not wait in line for it."""

_REPEATABLE = frozenset({"40001", "40P01", "23505"})
"""A serialisation failure, a deadlock, a key that another transaction took at the same time."""

_UNAVAILABLE = ("08", "53", "55P03", "57", "58", "25P03", "25006", "28", "3D", "XX")
"""Connections, resources, locks and statements over their time, a server that ends or only reads,
access, a damaged or missing database."""


SILENT = "08006"  # connection_failure
"""Given here to a connection that was closed because its server did not answer."""


class DatabaseAway(DatabaseUnavailable):
    """The database cannot be reached."""


def sqlstate(error: DBAPIError) -> str:
    """Code of an error of PostgreSQL; "" if the server did not send one."""
    return getattr(error.orig, "sqlstate", None) or ""


def may_repeat(error: DBAPIError) -> bool:
    """True if a transaction that ended so may succeed when it is run again."""
    return sqlstate(error) in _REPEATABLE


def stood_still(error: DBAPIError) -> bool:
    """True if the server ended a transaction because this process did not go on with it."""
    return sqlstate(error) == "25P03"


def was_silent(error: DBAPIError) -> bool:
    """True if a connection was closed after its server had not answered for long."""
    return sqlstate(error) == SILENT


def is_lost(error: DBAPIError) -> bool:
    """True if there is no connection any more, or never was one."""
    is_connection = isinstance(error, OperationalError | InterfaceError) and (
        not sqlstate(error) or was_silent(error)
    )
    return (error.connection_invalidated or is_connection) and not stood_still(error)


def failure_of(error: DBAPIError) -> BraidError | None:
    """Return what callers are told of an error of PostgreSQL; None: it is none that may happen."""
    state = sqlstate(error)
    if state == "53100":
        return DiskFailure(DiskTrouble.FULL, "the database's")
    if is_lost(error):
        return DatabaseAway("the store's database cannot be reached; models serve on, try again")
    if may_repeat(error):
        return DatabaseUnavailable("other servers change the same in the store; try again")
    if state.startswith(_UNAVAILABLE):
        return DatabaseUnavailable(f"the store's database cannot do this now ({_reason(error)})")
    return None


def _reason(error: DBAPIError) -> str:
    return str(error.orig).strip().split("\n", 1)[0][:200]


class SharedWatch:
    """The connection to a shared database. Used by all threads that use the database."""

    def __init__(self) -> None:
        self._failure: type[BraidError] | None = None  # logged, and not over yet
        self._rests_until = 0.0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Surround a transaction. Raises DatabaseUnavailable, or DiskFailure: its disk is full."""
        if monotonic() < self._rests_until:
            raise DatabaseAway("the store's database cannot be reached; models serve on, try again")
        try:
            yield
        except PoolTimeout as error:
            raise DatabaseUnavailable("all connections to the database are in use") from error
        except DBAPIError as error:
            failure = failure_of(error)
            if failure is None:
                raise
            self._failed(failure, error)
            raise failure from error
        if self._failure is not None:
            self._failure = None
            log.info("the store's database answers again")

    writing = reading

    def _failed(self, failure: BraidError, error: DBAPIError) -> None:
        if isinstance(failure, DatabaseAway):
            self._rests_until = monotonic() + REST_SECONDS
        if self._failure is not type(failure):
            log.error("the store's database fails: %s", failure, extra={"reason": _reason(error)})
        self._failure = type(failure)
