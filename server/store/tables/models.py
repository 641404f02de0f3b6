"""Model versions in the database. Every function runs inside the caller's transaction."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, union, update

from braid.compiler.options import ModelOptions, options_from_json
from braid.core.errors import ModelNotFound, PreconditionFailed, VersionNotFound
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.tables.dialects import put_row
from braid.server.store.tables.schema import digests, lengths, models, placed

_FIELDS = [name for name in ModelVersion.__slots__ if name != "own_artefact"]

# Made once: SQLAlchemy takes longer to make and to recognise a statement than SQLite to run it.
_PRESENT = (
    select(models).where(models.c.deleted_unix.is_(None)).order_by(models.c.name, models.c.version)
)
_VERSIONS = _PRESENT.where(models.c.name == bindparam("model"))
_OF_BYTES = _PRESENT.where(models.c.sha256 == bindparam("bytes"))
_COUNT = select(func.count()).where(models.c.deleted_unix.is_(None))
_FILES = union(select(digests.c.sha256), select(models.c.sha256).distinct())
_PLACED = select(placed)
_THIS = (models.c.name == bindparam("model"), models.c.version == bindparam("number"))
_CHANGE = update(models).where(*_THIS, models.c.deleted_unix.is_(None))


def add(
    connection: Connection,
    name: str,
    sha256: str,
    size_bytes: int,
    options: ModelOptions,
    version: int | None = None,
    own_artefact: str = "",
) -> ModelVersion:
    """Add a version: ``version``, or one above every version that the name ever had.

    ``own_artefact`` is the key of one that an import with samples made before. Raises
    PreconditionFailed: the name had ``version`` before, for something else.
    """
    taken = set(connection.scalars(select(models.c.version).where(models.c.name == name)))
    if version in taken:
        raise PreconditionFailed(
            f"{name} has or had a version {version} with other bytes or options, and a version "
            f"never changes; send it as version {max(taken) + 1}"
        )
    number = version or max(taken, default=0) + 1
    model = ModelVersion(
        *(name, number, sha256, size_bytes, options),
        created_unix=time.time(),
        own_artefact=own_artefact,
    )
    connection.execute(insert(models).values(_to_row(model)))
    return model


def put(connection: Connection, model: ModelVersion) -> None:
    put_row(connection, models, _to_row(model) | {"deleted_unix": None})


def present(connection: Connection, name: str | None = None) -> list[ModelVersion]:
    """All versions that are not deleted, by name and version; of one name if given."""
    if name is None:
        rows = connection.execute(_PRESENT)
    else:
        rows = connection.execute(_VERSIONS, {"model": name})
    return [_from_row(row) for row in rows]


def of_bytes(connection: Connection, sha256: str) -> list[ModelVersion]:
    """Versions of a file that are not deleted: no others can have its artefacts."""
    return [_from_row(row) for row in connection.execute(_OF_BYTES, {"bytes": sha256})]


def count(connection: Connection) -> int:
    return connection.scalars(_COUNT).one()


def get(connection: Connection, name: str, version: int) -> ModelVersion:
    """Return one version. NotFound: there is none, or it was deleted."""
    versions = {model.version: model for model in present(connection, name)}
    if not versions:
        raise ModelNotFound(name)
    if version not in versions:
        raise VersionNotFound(name, str(version), tuple(versions))
    return versions[version]


def find(connection: Connection, name: str, version: int) -> ModelVersion | None:
    rows = (model for model in present(connection, name) if model.version == version)
    return next(rows, None)


def set_state(
    connection: Connection, name: str, version: int, state: ModelStatus, message: str = ""
) -> None:
    """Change where a version stands; nothing happens to a deleted one."""
    this = {"model": name, "number": version}
    connection.execute(_CHANGE, {**this, "state": state.value, "message": message})


def serves(connection: Connection, model: ModelVersion) -> None:
    """Store that a version serves, with ``model``'s bytes and options; not if it is deleted."""
    served = replace(model, state=ModelStatus.SERVING, message="")
    this = {"model": model.name, "number": model.version}
    connection.execute(_CHANGE, {**this, **_to_row(served)})


def mark_deleted(connection: Connection, name: str, version: int) -> None:
    """The version is gone, and what was known of it; its number stays taken."""
    connection.execute(
        update(models)
        .where(models.c.name == name, models.c.version == version)
        .values(deleted_unix=time.time())
    )
    for table in (placed, lengths):
        connection.execute(delete(table).where(table.c.name == name, table.c.version == version))


def padding_failure(connection: Connection, model: ModelVersion) -> str:
    """Why no request of a version with these bytes is padded any more; "" if they are."""
    row = connection.execute(
        select(lengths).where(lengths.c.name == model.name, lengths.c.version == model.version)
    ).first()
    if row is None or row.sha256 != model.sha256:
        return ""
    return str(row.seen.get("padding_failure", ""))


def refuse_padding(connection: Connection, model: ModelVersion, reason: str) -> None:
    """Store why no request of a version is padded any more; the first reason stays."""
    seen = {"padding_failure": padding_failure(connection, model) or reason}
    row = {"name": model.name, "version": model.version, "sha256": model.sha256, "seen": seen}
    put_row(connection, lengths, row)


def remember(connection: Connection, files: Iterable[str]) -> None:
    """Note files, with the rows that need them first, as those of this database.

    Others are not this database's to remove: it may be new, older, or the wrong one.
    """
    for sha256 in files:
        put_row(connection, digests, {"sha256": sha256})


def remembered(connection: Connection) -> set[str]:
    return set(connection.scalars(_FILES))


def placed_versions(connection: Connection) -> set[tuple[str, int]]:
    """Versions that a model repository put in place."""
    return {(row.name, row.version) for row in connection.execute(_PLACED)}


def artefacts(connection: Connection) -> set[str]:
    """Keys of the artefacts that are needed: those of every version that is not deleted."""
    return {model.artefact for model in present(connection)}


def _to_row(model: ModelVersion) -> dict[str, Any]:
    fields = {name: getattr(model, name) for name in _FIELDS}
    own = {"artefact": model.own_artefact} if model.own_artefact else {}
    return fields | {"options": {**model.options.to_json(), **own}, "state": model.state.value}


def samples(connection: Connection) -> set[str]:
    return {model.options.samples for model in present(connection)} - {""}


def _from_row(row: Row[Any]) -> ModelVersion:
    fields = {name: getattr(row, name) for name in _FIELDS}
    fields |= {"options": options_from_json(row.options), "state": ModelStatus(row.state)}
    return ModelVersion(**fields, own_artefact=row.options.get("artefact", ""))
