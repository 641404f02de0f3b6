"""How models serve: their configurations."""

from sqlalchemy import Connection, delete, select

from braid.core.json_form import from_json, to_json
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import ServingConfig
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables.dialects import put_row
from braid.server.store.tables.schema import serving

_EVERY = select(serving)


def retire_beside(connection: Connection, new: ModelVersion) -> None:
    """Unload what the policy does not want beside a version that serves for the first time.

    Runs in the transaction that marks the version as serving, so a crash cannot leave two versions
    serving. Jobs of unloaded versions are asked to end.
    """
    present = models_table.present(connection, new.name)
    states = {model.version: model.state for model in present}
    serving = {number for number, state in states.items() if state is ModelStatus.SERVING}
    unloaded = {number for number, state in states.items() if state is ModelStatus.UNLOADED}
    wanted = every(connection).get(new.name, ServingConfig()).wanted(serving | unloaded)
    if new.version not in wanted:
        return
    for number in serving - wanted:
        models_table.set_state(connection, new.name, number, ModelStatus.UNLOADED)
        jobs_table.request_cancels(connection, new.name, number)


def put(connection: Connection, name: str, config: ServingConfig) -> None:
    put_row(connection, serving, {"name": name, "config": to_json(config)})


def every(connection: Connection) -> dict[str, ServingConfig]:
    rows = connection.execute(_EVERY)
    return {row.name: from_json(ServingConfig, row.config) for row in rows}


def forget(connection: Connection, name: str) -> None:
    connection.execute(delete(serving).where(serving.c.name == name))
