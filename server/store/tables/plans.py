"""The schedule cache and the stage measurements. Every function runs in the caller's transaction.

Both outlive the models they were made for: equal bytes, or equal stages of another model, find
them again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, insert, select, update

from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, graph_to_json, load_graph
from braid.core.json_form import to_json
from braid.core.measurement import StageLatency
from braid.core.schedule import Schedule, schedule_from_json, schedule_to_json
from braid.server.store.tables.schema import graphs, measurements, schedules

log = logging.getLogger("braid.store")

_KEYS_A_QUERY = 500  # databases bound the number of parameters of a statement


def put_schedule(connection: Connection, schedule: Schedule, graph: OpGraph | None = None) -> None:
    """Store a schedule under its key, in place of an older one; None: keep its static graph."""
    key = schedule.key
    connection.execute(delete(schedules).where(schedules.c.id == key.id))
    row = {
        "id": key.id,
        "model_digest": key.model_digest,
        "device_key": key.device_key,
        "batch_size": key.batch_size,
        "key": key.to_json(),
        "schedule": json.dumps(schedule_to_json(schedule)),
        "created_unix": time.time(),
    }
    connection.execute(insert(schedules).values(row))
    if graph is not None:
        put_graph(connection, schedule, graph)


def put_graph(connection: Connection, schedule: Schedule, graph: OpGraph) -> None:
    """Store the static graph of a schedule, in place of an older one."""
    schedule_id = schedule.key.id
    connection.execute(delete(graphs).where(graphs.c.schedule_id == schedule_id))
    row = {"schedule_id": schedule_id, "graph": json.dumps(graph_to_json(graph))}
    connection.execute(insert(graphs).values(row))


def find_graph(connection: Connection, schedule: Schedule) -> OpGraph | None:
    """The static graph of a schedule, if it was stored with it and can be read."""
    wanted = graphs.c.schedule_id == schedule.key.id
    text = connection.scalar(select(graphs.c.graph).where(wanted))
    if text is None:
        return None
    try:
        graph = load_graph(text)
    except InvalidArtefact as error:
        facts = {"schedule_id": schedule.key.id, "reason": str(error)}
        log.warning("unreadable graph of a schedule", extra=facts)
        return None
    # An earlier version may have replaced the schedule and not its graph.
    names = tuple(operator.name for operator in graph.operators)
    return graph if names == schedule.unit_names else None


def find_schedule(connection: Connection, schedule_id: str) -> Schedule | None:
    """The schedule with this key, if there is one that can be read."""
    text = connection.scalar(select(schedules.c.schedule).where(schedules.c.id == schedule_id))
    return None if text is None else _read(schedule_id, text)


def schedules_of(
    connection: Connection, model_digest: str, device_key: str | None = None
) -> list[Schedule]:
    """All schedules of a model, by batch size, oldest first; of one device if given."""
    query = select(schedules.c.id, schedules.c.schedule).where(
        schedules.c.model_digest == model_digest
    )
    if device_key is not None:
        query = query.where(schedules.c.device_key == device_key)
    query = query.order_by(schedules.c.batch_size, schedules.c.created_unix)
    found = [_read(row.id, row.schedule) for row in connection.execute(query)]
    return [schedule for schedule in found if schedule is not None]


def forget_schedule(connection: Connection, schedule_id: str) -> None:
    """Remove a schedule that does not fit its model any more."""
    connection.execute(delete(schedules).where(schedules.c.id == schedule_id))
    connection.execute(delete(graphs).where(graphs.c.schedule_id == schedule_id))


def forget_profile(connection: Connection, model_digest: str, device_key: str) -> None:
    """Remove a model's schedules on one device, and all measurements no younger than them."""
    mine = (schedules.c.model_digest == model_digest, schedules.c.device_key == device_key)
    newest = connection.scalar(select(func.max(schedules.c.created_unix)).where(*mine))
    if newest is None:
        return
    ids = select(schedules.c.id).where(*mine)
    connection.execute(delete(graphs).where(graphs.c.schedule_id.in_(ids)))
    connection.execute(delete(schedules).where(*mine))
    connection.execute(
        delete(measurements)
        .where(measurements.c.device_key == device_key)
        .where(measurements.c.created_unix <= newest)
    )


def drop_impossible(connection: Connection) -> int:
    """Remove latencies of zero, which earlier versions stored under load; returns how many."""
    zeros = delete(measurements).where(measurements.c.latency_us <= 0)
    return connection.execute(zeros).rowcount


def put_latency(
    connection: Connection, device_key: str, signature: str, latency: StageLatency
) -> None:
    """Store the latency of a stage on a device, in place of an older one."""
    table = measurements.c
    row = {"device_key": device_key, "signature": signature, **to_json(latency)}
    row["created_unix"] = time.time()
    changed = connection.execute(
        update(measurements)
        .where(table.device_key == device_key)
        .where(table.signature == signature)
        .values(row)
    )
    if not changed.rowcount:
        connection.execute(insert(measurements).values(row))


def find_latencies(
    connection: Connection, device_key: str, signatures: Sequence[str]
) -> dict[str, float]:
    """Known latencies in microseconds, by signature."""
    table, known = measurements.c, {}
    for start in range(0, len(signatures), _KEYS_A_QUERY):
        query = (
            select(table.signature, table.latency_us)
            .where(table.device_key == device_key)
            .where(table.signature.in_(signatures[start : start + _KEYS_A_QUERY]))
        )
        known.update({row.signature: row.latency_us for row in connection.execute(query)})
    return known


def _read(schedule_id: str, text: str) -> Schedule | None:
    """Read a schedule; None, with a warning, if it cannot be read: it is made again then."""
    try:
        return schedule_from_json(json.loads(text))
    except (InvalidArtefact, ValueError) as error:
        log.warning("unreadable schedule", extra={"schedule_id": schedule_id, "reason": str(error)})
        return None
