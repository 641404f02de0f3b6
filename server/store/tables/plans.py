"""The schedule cache and the stage measurements. Every function runs in the caller's transaction.

Both outlive the models they were made for: equal bytes, or equal stages of another model, find
them again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, bindparam, delete, select

from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, graph_to_json, load_graph
from braid.core.measurement import StageLatency
from braid.core.schedule import (
    Provisional,
    Schedule,
    ScheduleKey,
    schedule_from_json,
    schedule_to_json,
)
from braid.server.store.records import ModelVersion
from braid.server.store.tables.dialects import now, put_row
from braid.server.store.tables.schema import graphs, measurements, schedules

log = logging.getLogger("braid.store")

BEFORE_S = 0.1
"""Seconds before a schedule began to be made that count to its making: it is stored later."""

_KEYS_A_QUERY = 500  # databases bound the number of parameters of a statement

# Made once: SQLAlchemy takes longer to make and to recognise a statement than SQLite to run it.
_GRAPH = select(graphs.c.graph).where(graphs.c.schedule_id == bindparam("id"))
_SCHEDULE = select(schedules.c.schedule).where(schedules.c.id == bindparam("id"))
_OF_MODEL = (
    select(schedules.c.id, schedules.c.schedule)
    .where(schedules.c.model_digest == bindparam("digest"))
    .order_by(schedules.c.batch_size, schedules.c.created_unix)
)
_ON_DEVICE = _OF_MODEL.where(schedules.c.device_key == bindparam("device"))
_LATENCIES = (
    select(measurements.c.signature, measurements.c.latency_us)
    .where(measurements.c.device_key == bindparam("device"))
    .where(measurements.c.signature.in_(bindparam("signatures", expanding=True)))
)


def put_schedule(connection: Connection, schedule: Schedule, graph: OpGraph | None = None) -> None:
    key = schedule.key
    row = {
        "id": key.id,
        "model_digest": key.model_digest,
        "device_key": key.device_key,
        "batch_size": key.batch_size,
        "key": key.to_json(),
        "schedule": json.dumps(schedule_to_json(schedule)),
        "created_unix": _written_at(connection),
    }
    put_row(connection, schedules, row)
    if graph is not None:
        put_graph(connection, schedule, graph)


def put_graph(connection: Connection, schedule: Schedule, graph: OpGraph) -> None:
    row = {"schedule_id": schedule.key.id, "graph": json.dumps(graph_to_json(graph))}
    put_row(connection, graphs, row)


def find_graph(connection: Connection, schedule: Schedule) -> OpGraph | None:
    """The static graph of a schedule, if it was stored with it and can be read."""
    text = connection.scalar(_GRAPH, {"id": schedule.key.id})
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
    text = connection.scalar(_SCHEDULE, {"id": schedule_id})
    return None if text is None else _read(schedule_id, text)


def schedules_of(
    connection: Connection, model_digest: str, device_key: str | None = None
) -> list[Schedule]:
    query = _OF_MODEL if device_key is None else _ON_DEVICE
    rows = connection.execute(query, {"digest": model_digest, "device": device_key})
    found = [_read(row.id, row.schedule) for row in rows]
    return [schedule for schedule in found if schedule is not None]


def schedules_for(connection: Connection, model: ModelVersion, device_key: str) -> list[Schedule]:
    """Schedules that a version was registered for, on one device, by batch size."""
    options = model.options
    asked = options.planner.text, options.precision, options.accepted_error, options.samples
    found = schedules_of(connection, model.sha256, device_key)
    return [schedule for schedule in found if _asked(schedule.key) == asked]


def _asked(key: ScheduleKey) -> tuple[str, str, float | None, str]:
    """Options of the registrations that get a schedule with this key."""
    return key.planner, key.precision, key.accepted_error, key.samples


def stored_at(
    connection: Connection, digests: Collection[str], device_keys: Collection[str]
) -> dict[str, float]:
    """Times at which the schedules of some models on some devices were stored, by their ids."""
    query = select(schedules.c.id, schedules.c.model_digest, schedules.c.created_unix).where(
        schedules.c.device_key.in_(device_keys)
    )
    if len(digests) <= _KEYS_A_QUERY:
        query = query.where(schedules.c.model_digest.in_(digests))
    rows = connection.execute(query)
    return {row.id: row.created_unix for row in rows if row.model_digest in digests}


def forget_schedule(connection: Connection, schedule_id: str) -> None:
    """Remove a schedule that does not fit its model any more."""
    connection.execute(delete(schedules).where(schedules.c.id == schedule_id))
    connection.execute(delete(graphs).where(graphs.c.schedule_id == schedule_id))


def doubt(
    connection: Connection, doubted: Iterable[Schedule], reason: str, *, is_asked: bool
) -> list[Schedule]:
    """Mark schedules as provisional; they serve until they are made again.

    All measurements of their devices that are no younger than them are removed: they come from the
    same device, and nobody knows since when it has been another one. Returns the marked schedules.
    With ``is_asked`` the next job of their model makes them again.
    """
    marked = []
    for schedule in doubted:
        _forget_measurements(connection, schedule)
        was = schedule.provenance.provisional
        is_compared = was is None or was.is_compared
        now = Provisional(reason, at_unix=time.time(), is_compared=is_compared, is_asked=is_asked)
        marked.append(schedule.found_provisional(now))
    for schedule in marked:
        put_schedule(connection, schedule)
    return marked


def ask_again(connection: Connection, provisional: Iterable[Schedule]) -> None:
    """Let the next job of their model make schedules again that are provisional.

    What was measured on their devices while they were made is removed.
    """
    for schedule in provisional:
        if (why := schedule.provenance.provisional) is not None:
            if why.made_in_s:
                _forget_measurements(connection, schedule, why.made_in_s + BEFORE_S)
            put_schedule(connection, schedule.found_provisional(replace(why, is_asked=True)))


def _forget_measurements(
    connection: Connection, schedule: Schedule, last_s: float | None = None
) -> None:
    """Remove what was measured on a device before a schedule was stored; all, or the last of it."""
    query = select(schedules.c.created_unix).where(schedules.c.id == schedule.key.id)
    stored_at = connection.scalar(query)
    if stored_at is None:
        return
    here = measurements.c.device_key == schedule.key.device_key
    forget = delete(measurements).where(here, measurements.c.created_unix <= stored_at)
    if last_s is not None:
        forget = forget.where(measurements.c.created_unix >= stored_at - last_s)
    connection.execute(forget)


def put_latency(
    connection: Connection, device_key: str, signature: str, latency: StageLatency
) -> None:
    row = {
        "device_key": device_key,
        "signature": signature,
        "latency_us": latency.latency_us,
        "spread": latency.spread,
        "repeats": latency.repeats,
        "created_unix": _written_at(connection),
    }
    put_row(connection, measurements, row)


def put_latencies(
    connection: Connection, device_key: str, latencies: Mapping[str, StageLatency]
) -> None:
    """Store latencies of stages on a device by signature, in place of older ones."""
    for signature, latency in latencies.items():
        put_latency(connection, device_key, signature, latency)


def all_latencies(connection: Connection, device_key: str) -> dict[str, float]:
    """All latencies on a device in microseconds, by signature."""
    rows = connection.execute(
        select(measurements.c.signature, measurements.c.latency_us).where(
            measurements.c.device_key == device_key
        )
    )
    return {row.signature: row.latency_us for row in rows}


def find_latencies(
    connection: Connection, device_key: str, signatures: Sequence[str]
) -> dict[str, float]:
    known: dict[str, float] = {}
    for start in range(0, len(signatures), _KEYS_A_QUERY):
        asked = {"device": device_key, "signatures": signatures[start : start + _KEYS_A_QUERY]}
        rows = connection.execute(_LATENCIES, asked)
        known.update({row.signature: row.latency_us for row in rows})
    return known


def _written_at(connection: Connection) -> ColumnElement[float] | float:
    """Time of a row: servers that share a database go by its clock, as theirs may differ."""
    return now(connection) if connection.dialect.name == "postgresql" else time.time()


def _read(schedule_id: str, text: str) -> Schedule | None:
    """Read a schedule; None, with a warning, if it cannot be read: it is made again then."""
    try:
        return schedule_from_json(json.loads(text))
    except (InvalidArtefact, ValueError) as error:
        log.warning("unreadable schedule", extra={"schedule_id": schedule_id, "reason": str(error)})
        return None
