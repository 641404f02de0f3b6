"""Tables, and opening a database that has them.

Plain SQLAlchemy Core, so that another database can take SQLite's place; what only SQLite
understands stands in ``_tune_sqlite`` and ``_begin_sqlite``.

Durability: WAL with ``synchronous=FULL``. A commit that returned survives ``kill -9`` and power
loss. A stage measurement takes far longer than the commit that stores it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError

from braid.core.disk import disk_failure
from braid.core.errors import StartupError

log = logging.getLogger("braid.store")

SCHEMA_VERSION = 3
BUSY_TIMEOUT_MS = 5000

metadata = MetaData()

meta = Table("meta", metadata, Column("schema_version", Integer, nullable=False))

# Deleted versions keep their row, so that a version number never means something else later.
models = Table(
    "models",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", String(64), nullable=False, index=True),
    Column("size_bytes", Integer, nullable=False),
    Column("options", JSON, nullable=False),  # records.RegistrationOptions
    Column("state", String(16), nullable=False),  # records.ModelStatus
    Column("message", Text, nullable=False, default=""),
    Column("created_unix", Float, nullable=False),
    Column("deleted_unix", Float),
)

jobs = Table(
    "jobs",
    metadata,
    Column("sequence", Integer, primary_key=True),  # order of registration
    Column("id", String(32), nullable=False, unique=True),
    Column("model", String(128), nullable=False),
    Column("version", Integer, nullable=False),
    Column("device_keys", Text, nullable=False),  # what it schedules for
    Column("state", String(16), nullable=False, index=True),  # records.JobStatus
    Column("progress", Float, nullable=False),
    Column("detail", Text, nullable=False),
    Column("eta_seconds", Float, nullable=False),
    Column("done", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("message", Text, nullable=False),
    Column("created_unix", Float, nullable=False),
    Column("updated_unix", Float, nullable=False),
    Index("jobs_by_model", "model", "version"),
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", String(24), primary_key=True),  # braid.core.schedule.ScheduleKey.id
    Column("model_digest", String(64), nullable=False, index=True),
    Column("device_key", Text, nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("key", JSON, nullable=False),
    Column("schedule", Text, nullable=False),  # the artefact as exchanged: JSON with a checksum
    Column("created_unix", Float, nullable=False),
)

# What the units of a schedule are, to draw it. Schedules of earlier versions have no row.
graphs = Table(
    "graphs",
    metadata,
    Column("schedule_id", String(24), primary_key=True),  # schedules.id
    Column("graph", Text, nullable=False),  # braid.core.graph.graph_to_json
)

measurements = Table(
    "measurements",
    metadata,
    Column("device_key", String(512), primary_key=True),
    Column("signature", String(64), primary_key=True),  # braid.scheduler.signature
    Column("latency_us", Float, nullable=False),
    Column("spread", Float, nullable=False),
    Column("repeats", Integer, nullable=False),
    Column("created_unix", Float, nullable=False),
)


# How each model serves; no row: as by default.
serving = Table(
    "serving",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("config", JSON, nullable=False),  # serving_config.ServingConfig
)

# Versions that a model repository put in place, and takes away again with their folders.
placed = Table(
    "placed",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
)


_READING = "braid_reading"


def reading(engine: Engine) -> Engine:
    """The same database, for transactions that are rolled back."""
    return engine.execution_options(**{_READING: True})


def open_database(url: str, folder: Path) -> Engine:
    """Connect, create what is missing, check the version of the rest.

    Args:
        url: as SQLAlchemy has it.
        folder: where a SQLite database lies.

    Raises:
        StartupError: the database is newer than this program, or is no database.
    """
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _tune_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    try:
        with engine.begin() as connection:
            _check_version(connection, url)
    except DBAPIError as error:
        engine.dispose()
        if failure := disk_failure(error, folder):
            raise StartupError(f"the store's database cannot be used: {failure}") from error
        raise StartupError(
            f"the store's database {url} cannot be used ({error.orig}); "
            "restore it from a backup or choose another BRAID_STORE"
        ) from error
    except StartupError:
        engine.dispose()
        raise
    return engine


def _check_version(connection: Connection, url: str) -> None:
    meta.create(connection, checkfirst=True)
    found = connection.scalar(select(meta.c.schema_version))
    if found is None:
        metadata.create_all(connection)
        connection.execute(insert(meta).values(schema_version=SCHEMA_VERSION))
    elif found in (1, 2):  # 2 added a table, 3 a state of jobs that earlier versions cannot read
        serving.create(connection, checkfirst=True)
        _name_unscheduled(connection)
        connection.execute(update(meta).values(schema_version=SCHEMA_VERSION))
        log.info("the database was converted", extra={"before": found, "now": SCHEMA_VERSION})
    elif found != SCHEMA_VERSION:
        raise StartupError(
            f"the store's database {url} has schema {found}, this version of Braid reads "
            f"{SCHEMA_VERSION}; run a newer Braid or choose another BRAID_STORE"
        )
    for table in (graphs, placed):  # earlier versions of Braid ignore them
        table.create(connection, checkfirst=True)


def _name_unscheduled(connection: Connection) -> None:
    """Give jobs whose model serves the state of their own; they were FAILED, with this message."""
    serves = jobs.c.message.startswith("the model serves sequentially where no schedule was made")
    unscheduled = update(jobs).where(jobs.c.state == "FAILED", serves).values(state="UNSCHEDULED")
    connection.execute(unscheduled)


def _tune_sqlite(connection: DBAPIConnection, _: Any) -> None:
    """Make commits durable, and leave the begin of transactions to ``_begin_sqlite``."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA temp_store=MEMORY")  # what is full is the store's disk, never another
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Writers take their lock at once; readers need none, nor a disk that can be written."""
    is_reading = connection.get_execution_options().get(_READING, False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")
