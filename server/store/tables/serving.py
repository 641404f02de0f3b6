"""Serving configurations in the database. Every function runs inside the caller's transaction."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select

from braid.server.store.serving_config import ServingConfig, config_from_json
from braid.server.store.tables.schema import serving


def put(connection: Connection, name: str, config: ServingConfig) -> None:
    """Keep a model's configuration."""
    forget(connection, name)
    connection.execute(insert(serving).values(name=name, config=asdict(config)))


def every(connection: Connection) -> dict[str, ServingConfig]:
    """Configurations by name of the model."""
    rows = connection.execute(select(serving))
    return {row.name: config_from_json(row.config) for row in rows}


def forget(connection: Connection, name: str) -> None:
    """Drop a model's configuration, if it has one."""
    connection.execute(delete(serving).where(serving.c.name == name))
