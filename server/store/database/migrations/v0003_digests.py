"""Files that a database was told of: digests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table; a start fills in what the models are made of."""
    op.create_table(
        "digests", sa.Column("sha256", sa.String(64), primary_key=True), if_not_exists=True
    )
