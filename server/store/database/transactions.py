"""Transactions of a store: reads and writes, and what belongs to each of them."""

import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Self, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from braid.core.errors import DiskFailure, StoreUnavailable, TakenOver
from braid.server.store.database.database import Database
from braid.server.store.records import JobRecord
from braid.server.store.tables import jobs as jobs_table

log = logging.getLogger("braid.store")

CHANNEL = "braid"
"""Channel on which PostgreSQL tells of writes: ``WHAT NODE TIME``, the time by its clock."""

_TELL = text("SELECT pg_notify(:channel, :payload || extract(epoch FROM clock_timestamp())::text)")

T = TypeVar("T")
Guard = Callable[[Connection], None]
"""Looks, and locks, whether this server may still write; else raises TakenOver."""


@dataclass(frozen=True, slots=True)
class _End:
    """Last state of a job, and the guard that it is to be stored under."""

    job: JobRecord
    guard: Guard | None


class Transactions:
    """Reads and writes of a store's database. Used by the store's thread."""

    def __init__(self, database: Database, node: str, has_ended: Callable[[str], None]) -> None:
        """``has_ended`` gets the digest of the upload of each job whose end was stored."""
        self.database = database
        self._node = node
        self._has_ended = has_ended
        self._guard: Guard | None = None
        self._ends: dict[str, _End] = {}  # by id of a job: not stored, as the database was away

    def guarded(self, guard: Guard) -> Self:
        """The same transactions, whose writes ``guard`` may refuse at their begin."""
        other = copy.copy(self)
        other._guard = guard
        return other

    def write(self, change: Callable[[Connection], T], tells: str = "") -> T:
        """Make a change; ends of jobs that could not be stored before are stored with it.

        ``tells``: what the other servers are to look at. Raises TakenOver: another server works on
        this now; else as ``Database.write``.
        """
        ends = list(self._ends.values())

        def whole(connection: Connection) -> tuple[T, set[str]]:
            uploads = {upload for end in ends if (upload := _store(connection, end)) is not None}
            if self._guard is not None:
                self._guard(connection)
            result = change(connection)
            self._tell(connection, tells or ("jobs" if ends else ""))
            return result, uploads

        result, uploads = self.database.write(whole)
        for end in ends:
            self._ends.pop(end.job.id, None)
        with suppress(DiskFailure, StoreUnavailable):  # the next start sweeps
            for sha256 in uploads:
                self._has_ended(sha256)
        return result

    def read(self, query: Callable[[Connection], T], *, stored_only: bool = False) -> T:
        """What is stored, with the ends of jobs that could not be; raises as ``Database.read``."""
        ends = () if stored_only else tuple(self._ends.values())

        def whole(connection: Connection) -> T:
            # On a disk that is read-only they are not shown.
            with nullcontext() if self.database.is_shared else suppress(DBAPIError):
                for end in ends:
                    jobs_table.end(connection, end.job)
            return query(connection)

        return self.database.read(whole)

    def end(self, job: JobRecord) -> None:
        """Store a job's end, or keep it for the next write if the database takes none now."""
        self._ends[job.id] = _End(job, self._guard)
        try:
            self.write(lambda _: None, "jobs")
        except (DiskFailure, StoreUnavailable):
            pass  # logged
        except BaseException:
            self._ends.pop(job.id, None)
            raise

    @property
    def has_unstored_ends(self) -> bool:
        return bool(self._ends)

    def _tell(self, connection: Connection, what: str) -> None:
        """Let the other servers know, once this transaction is committed."""
        if what and self.database.is_shared:
            payload = {"channel": CHANNEL, "payload": f"{what} {self._node} "}
            connection.execute(_TELL, payload)


def _store(connection: Connection, end: _End) -> str | None:
    """Store the end of a job unless it is another server's now; returns its upload's digest."""
    try:
        if end.guard is not None:
            end.guard(connection)
        return jobs_table.end(connection, end.job)
    except TakenOver as error:
        log.info("the end of a job is another server's: %s", error, extra={"job": end.job.id})
        return None
