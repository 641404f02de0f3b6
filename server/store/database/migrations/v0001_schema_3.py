"""Tables of schema 3, as far as they are missing; conversion of schemas 1 and 2.

2 added the table ``serving``, 3 a state of jobs that earlier versions cannot read. Without a new
number came ``graphs`` and ``placed``.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create what is missing, and give jobs whose model serves the state of their own."""
    _create_models_and_jobs()
    _create_plans()
    _create_serving()
    jobs = sa.table("jobs", sa.column("state"), sa.column("message"))
    serves = jobs.c.message.startswith("the model serves sequentially where no schedule was made")
    was_failed = sa.update(jobs).where(jobs.c.state == "FAILED", serves)
    op.execute(was_failed.values(state="UNSCHEDULED"))


def _create_models_and_jobs() -> None:
    op.create_table(
        "models",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("deleted_unix", sa.Float),
        if_not_exists=True,
    )
    op.create_index("ix_models_sha256", "models", ["sha256"], if_not_exists=True)
    op.create_table(
        "jobs",
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("device_keys", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("progress", sa.Float, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("eta_seconds", sa.Float, nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        sa.Column("updated_unix", sa.Float, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state"], if_not_exists=True)
    op.create_index("jobs_by_model", "jobs", ["model", "version"], if_not_exists=True)


def _create_plans() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(24), primary_key=True),
        sa.Column("model_digest", sa.String(64), nullable=False),
        sa.Column("device_key", sa.Text, nullable=False),
        sa.Column("batch_size", sa.Integer, nullable=False),
        sa.Column("key", sa.JSON, nullable=False),
        sa.Column("schedule", sa.Text, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_schedules_model_digest", "schedules", ["model_digest"], if_not_exists=True)
    op.create_table(
        "graphs",
        sa.Column("schedule_id", sa.String(24), primary_key=True),
        sa.Column("graph", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "measurements",
        sa.Column("device_key", sa.String(512), primary_key=True),
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("latency_us", sa.Float, nullable=False),
        sa.Column("spread", sa.Float, nullable=False),
        sa.Column("repeats", sa.Integer, nullable=False),
        sa.Column("created_unix", sa.Float, nullable=False),
        if_not_exists=True,
    )


def _create_serving() -> None:
    op.create_table(
        "serving",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("config", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "placed",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        if_not_exists=True,
    )
