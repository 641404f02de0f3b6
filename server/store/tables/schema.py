"""Tables of a store, on SQLite and PostgreSQL.

Columns ``*_unix`` are the clocks of servers, for people; ``*_at`` is the database's own clock, also
in seconds since 1970.
"""

import re

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    false,
    text,
)

SCHEMA_VERSION = 3

metadata = MetaData()

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that a text of a database cannot hold: NUL, and halves of others."""


class SaidText(TypeDecorator[str]):
    """Text that may repeat anything, also names from an uploaded file."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _UNSTORABLE.sub("\ufffd", value)


meta = Table("meta", metadata, Column("schema_version", Integer, nullable=False))

# Deleted versions keep their row, so that a version number never means something else later.
models = Table(
    "models",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", String(64), nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("options", JSON, nullable=False),  # records.ModelOptions; and "artefact", its own key
    Column("state", String(16), nullable=False),  # records.ModelStatus
    Column("message", SaidText, nullable=False, default=""),
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
    Column("detail", SaidText, nullable=False),
    Column("eta_seconds", Float, nullable=False),
    Column("done", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("message", SaidText, nullable=False),
    Column("created_unix", Float, nullable=False),
    Column("updated_unix", Float, nullable=False),
    Column("cancel_requested", Boolean, nullable=False, default=False, server_default=false()),
    Column("tries", Integer, nullable=False, default=0, server_default=text("0")),
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

# Versions whose padded requests were answered wrongly.
lengths = Table(
    "lengths",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("sha256", String(64), nullable=False),  # models.sha256 that they are of
    Column("seen", JSON, nullable=False),  # "padding_failure": why
)

# Files that this database was told of: uploads with their artefacts, and samples. A file that it
# knows nothing of is another database's, or a newer one's, and never removed.
digests = Table("digests", metadata, Column("sha256", String(64), primary_key=True))

# Servers that share the database.
nodes = Table(
    "nodes",
    metadata,
    Column("id", String(128), primary_key=True),  # BRAID_NODE_NAME
    Column("address", String(300), nullable=False),
    Column("device_keys", Text, nullable=False),
    Column("version", String(64), nullable=False),
    Column("started_at", Float, nullable=False),
    Column("beat_at", Float, nullable=False),
)

# Who works on what. A row stays, so that its fence never means another owner later.
leases = Table(
    "leases",
    metadata,
    Column("name", String(256), primary_key=True),
    Column("node", String(128), nullable=False, index=True),  # nodes.id
    Column("fence", BigInteger, nullable=False),  # one more with each owner
    Column("expires_at", Float, nullable=False),
)

# Objects of the shared files.
objects = Table(
    "objects",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("touched_at", Float, nullable=False),
)
