"""What other nodes changed in the database, as PostgreSQL tells: LISTEN on a connection of its own.

    another node: transaction ──NOTIFY braid, 'WHAT NODE TIME'──> PostgreSQL ──> hear(Change)
    connection lost ──> again, until it is there ──> hear(anything may have changed)

A notification may be lost; who hears must look at the database by itself now and then, too.
Imports psycopg.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg
from sqlalchemy import URL

from braid.server.store.database.postgresql import connect_arguments
from braid.server.store.database.transactions import CHANNEL

log = logging.getLogger("braid.fleet")

ANYTHING = ""
"""What changed, where that is not known."""

CONNECT_S = 5.0
ANSWER_S = 5.0
AGAIN_S = 1.0
"""Seconds to connect, to answer a question, and between two attempts to connect."""


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change of the database."""

    what: str = ANYTHING  # as the store tells: "models", "serving", "schedules", "jobs", ...
    made_at: float | None = None  # on this node's monotonic clock, in seconds; None: not known


class Notifications:
    """Changes that other nodes, and this one, have committed. Belongs to the event loop."""

    def __init__(self, url: URL, check_seconds: float) -> None:
        """Connect to nothing yet; a silent connection is checked every ``check_seconds``."""
        self._url = url
        self._check_seconds = check_seconds
        self._hearers: list[Callable[[Change], None]] = []
        self._ahead_s = 0.0  # the database's clock minus the monotonic clock

    def subscribe(self, hear: Callable[[Change], None]) -> None:
        self._hearers.append(hear)

    async def run(self) -> None:
        """Listen until cancelled, also across outages of the database."""
        is_away = False
        while True:
            try:
                async with asyncio.timeout(2 * CONNECT_S):
                    connection = await self._connect()
                async with connection:
                    if is_away:
                        log.info("notifications of the database are heard again")
                    is_away = False
                    self._tell(Change())
                    await self._listen(connection)
            except (psycopg.Error, OSError, TimeoutError) as error:
                if not is_away:
                    reason = str(error).strip().partition("\n")[0] or type(error).__name__
                    log.warning("no notifications of the database", extra={"reason": reason})
                is_away = True
            await asyncio.sleep(AGAIN_S)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        _, where = self._url.get_dialect()().create_connect_args(self._url)
        arguments = {**where, **connect_arguments(), "application_name": "braid-listen"}
        connection = await psycopg.AsyncConnection.connect(**arguments, autocommit=True)
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
            await self._set_clock(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for note in connection.notifies(timeout=self._check_seconds):
                self._tell(self._change(note.payload))
            async with asyncio.timeout(ANSWER_S):
                await self._set_clock(connection)

    async def _set_clock(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Compare the clocks, which also shows that the connection is alive."""
        result = await connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        row = await result.fetchone()
        assert row is not None
        self._ahead_s = float(row[0]) - monotonic()

    def _change(self, payload: str) -> Change:
        """Read the payload of a notification; what cannot be read may be anything."""
        what, _, time_s = (*payload.split(" "), "", "", "")[:3]
        try:
            made_at = float(time_s) - self._ahead_s if time_s else None
        except ValueError:
            made_at = None
        return Change(what, made_at)

    def _tell(self, change: Change) -> None:
        for hear in self._hearers:
            hear(change)
