"""Servers that share the database. Every function runs inside the caller's transaction."""

from collections import defaultdict
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from braid.server.fleet.records import JOB
from braid.server.store.records import NodeRecord, ShownNode
from braid.server.store.tables.dialects import now
from braid.server.store.tables.schema import leases, nodes

FORGOTTEN_SECONDS = 86_400.0
"""Time after its last beat that a node is no longer listed."""


def join(connection: Connection, node: NodeRecord) -> None:
    """List a node, in place of an earlier process of the same id; forget those long gone."""
    long_gone = nodes.c.beat_at < now(connection) - FORGOTTEN_SECONDS
    connection.execute(delete(nodes).where((nodes.c.id == node.id) | long_gone))
    _insert(connection, node)


def beat(connection: Connection, node: NodeRecord) -> None:
    row = {"address": node.address, "beat_at": now(connection)}
    beaten = connection.execute(update(nodes).where(nodes.c.id == node.id).values(**row))
    if not beaten.rowcount:  # forgotten, as it was away so long
        _insert(connection, node)


def leave(connection: Connection, node_id: str) -> None:
    connection.execute(delete(nodes).where(nodes.c.id == node_id))


def listed(connection: Connection, lease_seconds: float) -> list[ShownNode]:
    """All nodes, by id, with the age of their beats and the jobs that they have leases of.

    One lives that has beaten within the time of a lease.
    """
    held = select(leases.c.node, leases.c.name).where(
        leases.c.name.startswith(JOB, autoescape=True), leases.c.expires_at >= now(connection)
    )
    jobs: dict[str, list[str]] = defaultdict(list)
    for node_id, name in connection.execute(held.order_by(leases.c.name)):
        jobs[node_id].append(name.removeprefix(JOB))
    ages = select(nodes.c.id, now(connection) - nodes.c.beat_at)
    ages_s = {node_id: max(age_s, 0.0) for node_id, age_s in connection.execute(ages)}
    query = select(nodes, _lives(connection, lease_seconds).label("is_alive")).order_by(nodes.c.id)
    return [
        ShownNode(NodeRecord(**row._mapping), ages_s[row.id], tuple(jobs[row.id]))
        for row in connection.execute(query)
        if row.id in ages_s  # not joined since
    ]


def alive(connection: Connection, lease_seconds: float, device_keys: str | None = None) -> int:
    """Number of nodes that live; of those with these devices, if given."""
    query = select(func.count()).select_from(nodes).where(_lives(connection, lease_seconds))
    if device_keys is not None:
        query = query.where(nodes.c.device_keys == device_keys)
    return connection.scalar(query) or 0


def _lives(connection: Connection, lease_seconds: float) -> ColumnElement[bool]:
    return nodes.c.beat_at >= now(connection) - lease_seconds


def _insert(connection: Connection, node: NodeRecord) -> None:
    row = asdict(node) | {"started_at": now(connection), "beat_at": now(connection)}
    del row["is_alive"]
    connection.execute(insert(nodes).values(**row))
