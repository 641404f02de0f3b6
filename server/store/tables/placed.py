"""Versions that a model repository put in place."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, select

from braid.server.store.records import JobRecord, ModelStatus, ModelVersion
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables.dialects import put_row
from braid.server.store.tables.schema import placed

_EVERY = select(placed)


def every(connection: Connection) -> set[tuple[str, int]]:
    return {(row.name, row.version) for row in connection.execute(_EVERY)}


def place(connection: Connection, model: ModelVersion, device_keys: str) -> tuple[JobRecord, bool]:
    """Add a job that makes ``model`` serve under its number, whatever had that number before.

    Returns the job, and whether the version serves: then its row stays as it is until the job
    makes the new bytes serve.
    """
    before = models_table.find(connection, model.name, model.version)
    serves = before is not None and before.state is ModelStatus.SERVING
    if not serves:
        models_table.put(connection, replace(model, state=ModelStatus.LOADING))
    put_row(connection, placed, {"name": model.name, "version": model.version})
    return jobs_table.add(connection, model, device_keys), serves
