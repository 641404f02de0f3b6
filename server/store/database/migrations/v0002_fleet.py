"""Servers that share a database: nodes, leases, objects of the shared files, tries of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add tables and columns; sizes may exceed 2 GiB."""
    _create_tables()
    _add_columns()
    if op.get_bind().dialect.name == "postgresql":  # SQLite's integers have 64 bits
        op.alter_column("models", "size_bytes", type_=sa.BigInteger)


def _create_tables() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("address", sa.String(300), nullable=False),
        sa.Column("device_keys", sa.Text, nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("beat_at", sa.Float, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_leases_node", "leases", ["node"], if_not_exists=True)
    op.create_table(
        "objects",
        sa.Column("key", sa.String(256), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("touched_at", sa.Float, nullable=False),
        if_not_exists=True,
    )


def _add_columns() -> None:
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("jobs")}
    columns = (
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("tries", sa.Integer, nullable=False, server_default=sa.text("0")),
    )
    for column in columns:
        if column.name not in present:
            op.add_column("jobs", column)
