"""Schedules and measurements as rows of the database that the servers of a fleet share."""

import json
from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, bindparam, delete, select

from braid.compiler.results import Results, read_graph, read_schedule
from braid.core.graph import OpGraph, graph_to_json
from braid.core.measurement import StageLatency
from braid.core.schedule import Schedule, ScheduleKey, schedule_to_json
from braid.server.store.tables.dialects import now, put_row
from braid.server.store.tables.schema import graphs, measurements, schedules

# Made once: SQLAlchemy takes longer to make and to recognise a statement than a database to run it.
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
    .order_by(measurements.c.created_unix)
)


class ResultRows(Results):
    """Schedules and measurements, read and changed in one transaction, which the caller ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # By the clock of the database: those of servers may differ.
        self._now: ColumnElement[float] = now(connection)

    def put_schedule(self, schedule: Schedule, graph: OpGraph | None = None) -> None:
        key = schedule.key
        row = {
            "id": key.id,
            "model_digest": key.model_digest,
            "device_key": key.device_key,
            "batch_size": key.batch_size,
            "key": key.to_json(),
            "schedule": json.dumps(schedule_to_json(schedule)),
            "created_unix": self._now,
        }
        put_row(self._connection, schedules, row)
        if graph is not None:
            self.put_graph(schedule, graph)

    def find_schedule(self, key: ScheduleKey) -> Schedule | None:
        text = self._connection.scalar(_SCHEDULE, {"id": key.id})
        return None if text is None else read_schedule(key.id, text)

    def schedules_of(self, model_digest: str, device_key: str | None = None) -> list[Schedule]:
        query = _OF_MODEL if device_key is None else _ON_DEVICE
        rows = self._connection.execute(query, {"digest": model_digest, "device": device_key})
        read = [read_schedule(row.id, row.schedule) for row in rows]
        return [schedule for schedule in read if schedule is not None]

    def forget_schedule(self, key: ScheduleKey) -> None:
        self._connection.execute(delete(schedules).where(schedules.c.id == key.id))
        self._connection.execute(delete(graphs).where(graphs.c.schedule_id == key.id))

    def put_graph(self, schedule: Schedule, graph: OpGraph) -> None:
        row = {"schedule_id": schedule.key.id, "graph": json.dumps(graph_to_json(graph))}
        put_row(self._connection, graphs, row)

    def find_graph(self, schedule: Schedule) -> OpGraph | None:
        text = self._connection.scalar(_GRAPH, {"id": schedule.key.id})
        return None if text is None else read_graph(schedule, text)

    def put_latencies(self, device_key: str, latencies: Mapping[str, StageLatency]) -> None:
        for signature, latency in latencies.items():
            row = {
                "device_key": device_key,
                "signature": signature,
                "latency_us": latency.latency_us,
                "spread": latency.spread,
                "repeats": latency.repeats,
                "created_unix": self._now,
            }
            put_row(self._connection, measurements, row)

    def all_latencies(self, device_key: str) -> dict[str, float]:
        rows = self._connection.execute(_LATENCIES, {"device": device_key})
        return {row.signature: row.latency_us for row in rows}

    def _forget_latencies(self, schedule: Schedule) -> None:
        query = select(schedules.c.created_unix).where(schedules.c.id == schedule.key.id)
        stored_at = self._connection.scalar(query)
        if stored_at is None:
            return
        here = measurements.c.device_key == schedule.key.device_key
        forget = delete(measurements).where(here, measurements.c.created_unix <= stored_at)
        self._connection.execute(forget)
