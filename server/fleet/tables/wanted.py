"""All that servers of one database are to serve. Runs inside the caller's transaction."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from braid.server.store.records import ModelVersion
from braid.server.store.serving_config import ServingConfig
from braid.server.store.tables import models as models_table
from braid.server.store.tables import serving
from braid.server.store.tables.schema import schedules

_DIGESTS_A_QUERY = 500  # databases bound the number of parameters of a statement


@dataclass(frozen=True, slots=True)
class WantedState:
    """Versions that each server of a database is to serve, at one moment."""

    models: Mapping[str, Mapping[int, ModelVersion]]  # that are not deleted, by name and number
    configs: Mapping[str, ServingConfig]  # by name; none: as by default
    schedules: Mapping[str, float]  # id -> when it was stored; on the devices asked for


def wanted(
    connection: Connection, device_keys: Collection[str], name: str | None = None
) -> WantedState:
    """Return what servers with devices of these keys are to serve; of one name if given."""
    models: dict[str, dict[int, ModelVersion]] = {}
    for model in models_table.present(connection, name):
        models.setdefault(model.name, {})[model.version] = model
    digests = {model.sha256 for versions in models.values() for model in versions.values()}
    configs = serving.every(connection)
    if name is not None:
        configs = {other: config for other, config in configs.items() if other == name}
    return WantedState(models, configs, _stored_at(connection, digests, device_keys))


def _stored_at(
    connection: Connection, digests: Collection[str], device_keys: Collection[str]
) -> dict[str, float]:
    """Times at which the schedules of some models on some devices were stored, by their ids."""
    query = select(schedules.c.id, schedules.c.model_digest, schedules.c.created_unix).where(
        schedules.c.device_key.in_(device_keys)
    )
    if len(digests) <= _DIGESTS_A_QUERY:
        query = query.where(schedules.c.model_digest.in_(digests))
    rows = connection.execute(query)
    return {row.id: row.created_unix for row in rows if row.model_digest in digests}
