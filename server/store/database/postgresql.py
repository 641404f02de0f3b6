"""Connections to PostgreSQL: none waits longer than its limits. Imports psycopg."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeVar

import psycopg
from psycopg.abc import PQGen, PQGenConn
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from braid.server.store.database.failures import SILENT

CONNECT_SECONDS = 5
LOOK_SECONDS = 0.1
RECYCLE_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which a connection gives up."""

    statement: int = 10  # one that runs: the server ends it
    lock: int = 5  # one that waits for another transaction: the server ends it
    # A transaction whose node stands still: the server ends it, and what it has locked is free.
    # Less than BRAID_LEASE_SECONDS, so that it keeps no other node from taking over.
    idle: int = 5
    answer: float = 15.0  # a server that does not answer: the connection is closed here


CHANGING_TABLES = Limits(statement=600, lock=120, idle=60, answer=630.0)

R = TypeVar("R")
Wanted = TypeVar("Wanted")


class SilentServer(psycopg.OperationalError):
    """A connection was closed because its server did not answer."""

    sqlstate = SILENT


class BoundedConnection(psycopg.Connection[Any]):
    """Connection that closes itself when its server does not answer for ``answer_seconds``.

    The timeouts of statements are kept by the server; they do not help when the server itself or
    the way to it stands still. Looks that find nothing are counted in place of seconds, so that an
    answer is not missed while this process stands still.
    """

    answer_seconds = 15.0

    def wait(
        self, gen: PQGen[R], interval: float = LOOK_SECONDS, timeout: float | None = None
    ) -> R:
        """Wait for the server as psycopg does, but not for ever."""
        looks = math.ceil(self.answer_seconds / interval)
        return super().wait(_bounded(gen, looks, self._leave), interval, timeout)

    def _leave(self) -> NoReturn:
        self.close()
        raise SilentServer(f"the server did not answer for {self.answer_seconds:g} seconds")

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        # psycopg, which looks as often, has no public place for this; tests hold that it is called.
        looks = math.ceil(CONNECT_SECONDS / LOOK_SECONDS)
        return _bounded(super()._connect_gen(conninfo), looks, _not_connected)


def _not_connected() -> NoReturn:
    raise psycopg.errors.ConnectionTimeout(f"no connection after {CONNECT_SECONDS:g} seconds")


def _bounded(
    gen: Generator[Wanted, Any, R], looks: int, leave: Callable[[], NoReturn]
) -> Generator[Wanted, Any, R]:
    """Wait for what ``gen`` waits for, but call ``leave`` after so many looks without success."""
    silent = 0
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted  # after each look, also if nothing is ready
            silent += not ready
            if silent == looks:
                leave()
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def make_engine(url: URL, limits: Limits | None = None) -> Engine:
    """Make an engine whose transactions are SERIALIZABLE and whose connections are bounded.

    Connections are looked at before each use, so that an outage needs no restart.
    """
    limits = limits or Limits()
    engine = create_engine(
        url,
        isolation_level="SERIALIZABLE",
        pool_pre_ping=True,
        pool_size=1,  # one thread of the store; others are rare
        max_overflow=4,
        pool_timeout=CONNECT_SECONDS,
        pool_recycle=RECYCLE_SECONDS,
        connect_args=connect_arguments(limits),
    )

    def connect(
        dialect: object, entry: ConnectionPoolEntry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BoundedConnection:
        connection = BoundedConnection.connect(*args, **{**kwargs, "connect_timeout": 0})
        connection.answer_seconds = limits.answer
        return connection

    event.listen(engine, "do_connect", connect)
    return engine


def connect_arguments(limits: Limits = Limits()) -> dict[str, Any]:
    """Arguments of ``psycopg.connect`` with which the server ends what takes too long."""
    ended = {
        "statement_timeout": limits.statement,
        "lock_timeout": limits.lock,
        "idle_in_transaction_session_timeout": limits.idle,
    }
    return {
        "connect_timeout": CONNECT_SECONDS,
        "options": " ".join(f"-c {name}={seconds}s" for name, seconds in ended.items()),
        "application_name": "braid",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": int(limits.answer * 1000),
    }
