"""Model versions in the database. Every function runs inside the caller's transaction."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from braid.core.errors import ModelNotFound, PreconditionFailed, VersionNotFound
from braid.server.store.records import (
    ModelStatus,
    ModelVersion,
    RegistrationOptions,
    options_from_json,
)
from braid.server.store.tables.schema import models

_FIELDS = ModelVersion.__slots__


def add(
    connection: Connection,
    name: str,
    sha256: str,
    size_bytes: int,
    options: RegistrationOptions,
    version: int | None = None,
) -> ModelVersion:
    """Add a version: ``version``, or one above every version that the name ever had.

    Raises:
        PreconditionFailed: the name had ``version`` before, for something else.
    """
    taken = set(connection.scalars(select(models.c.version).where(models.c.name == name)))
    if version in taken:
        raise PreconditionFailed(
            f"{name} has or had a version {version} with other bytes or options, and a version "
            f"never changes; send it as version {max(taken) + 1}"
        )
    number = version or max(taken, default=0) + 1
    model = ModelVersion(name, number, sha256, size_bytes, options, created_unix=time.time())
    connection.execute(insert(models).values(_to_row(model)))
    return model


def put(connection: Connection, model: ModelVersion) -> None:
    """Store a version as it is given, in place of what its number stood for before."""
    this = models.c.name == model.name, models.c.version == model.version
    connection.execute(delete(models).where(*this))
    connection.execute(insert(models).values(_to_row(model)))


def present(connection: Connection, name: str | None = None) -> list[ModelVersion]:
    """All versions that are not deleted, by name and version; of one name if given."""
    query = select(models).where(models.c.deleted_unix.is_(None))
    if name is not None:
        query = query.where(models.c.name == name)
    rows = connection.execute(query.order_by(models.c.name, models.c.version))
    return [_from_row(row) for row in rows]


def get(connection: Connection, name: str, version: int) -> ModelVersion:
    """Return one version.

    Raises:
        ModelNotFound, VersionNotFound: there is none, or it was deleted.
    """
    versions = {model.version: model for model in present(connection, name)}
    if not versions:
        raise ModelNotFound(name)
    if version not in versions:
        raise VersionNotFound(name, str(version), tuple(versions))
    return versions[version]


def find(connection: Connection, name: str, version: int) -> ModelVersion | None:
    """Return one version; None if there is none, or it was deleted."""
    found = (model for model in present(connection, name) if model.version == version)
    return next(found, None)


def set_state(
    connection: Connection, name: str, version: int, state: ModelStatus, message: str = ""
) -> None:
    """Change where a version stands; nothing happens to a deleted one."""
    connection.execute(
        update(models)
        .where(models.c.name == name, models.c.version == version)
        .where(models.c.deleted_unix.is_(None))
        .values(state=state.value, message=message)
    )


def serves(connection: Connection, model: ModelVersion) -> str | None:
    """Store that a version serves, with the bytes and options of ``model``.

    Nothing happens to a deleted one. Returns the digest that it had before.
    """
    this = (
        models.c.name == model.name,
        models.c.version == model.version,
        models.c.deleted_unix.is_(None),
    )
    before = connection.scalar(select(models.c.sha256).where(*this))
    served = replace(model, state=ModelStatus.SERVING, message="")
    connection.execute(update(models).where(*this).values(_to_row(served)))
    return before


def mark_deleted(connection: Connection, name: str, version: int) -> None:
    """The version is gone; its number stays taken."""
    connection.execute(
        update(models)
        .where(models.c.name == name, models.c.version == version)
        .values(deleted_unix=time.time())
    )


def digests(connection: Connection) -> set[str]:
    """SHA-256 of every version that is not deleted: the artefacts that are needed."""
    return set(connection.scalars(select(models.c.sha256).where(models.c.deleted_unix.is_(None))))


def _to_row(model: ModelVersion) -> dict[str, Any]:
    fields = {name: getattr(model, name) for name in _FIELDS}
    return fields | {"options": model.options.to_json(), "state": model.state.value}


def samples(connection: Connection) -> set[str]:
    """Digests of the samples of every version that is not deleted."""
    return {model.options.samples for model in present(connection)} - {""}


def _from_row(row: Row[Any]) -> ModelVersion:
    fields = {name: getattr(row, name) for name in _FIELDS}
    fields |= {"options": options_from_json(row.options), "state": ModelStatus(row.state)}
    return ModelVersion(**fields)
