"""Lengths of the requests of each version, which were chosen, and whether padding was wrong.

Servers that share the database add to the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, delete, select

from braid.core.json_form import from_json, to_json
from braid.server.store.records import ModelVersion, SeenLengths
from braid.server.store.tables.dialects import put_row
from braid.server.store.tables.schema import lengths

MOST_ROWS = 1 << 17
"""Rows that are remembered; of more, half of each length's are forgotten: newer ones count more."""


def find(connection: Connection, model: ModelVersion) -> SeenLengths:
    """What was seen of a version with these bytes."""
    row = connection.execute(
        select(lengths).where(lengths.c.name == model.name, lengths.c.version == model.version)
    ).first()
    if row is None or row.sha256 != model.sha256:
        return SeenLengths()
    return from_json(SeenLengths, row.seen)


def add(connection: Connection, model: ModelVersion, rows: Mapping[int, int]) -> SeenLengths:
    """Count rows of requests by their lengths; returns all."""
    before = find(connection, model)
    counts = Counter(before.rows) + Counter(rows)
    while counts.total() > MOST_ROWS:
        counts = Counter({length: count // 2 for length, count in counts.items() if count > 1})
    since = min(before.since + sum(rows.values()), MOST_ROWS)
    return _put(connection, model, replace(before, rows=dict(counts), since=since))


def choose(connection: Connection, model: ModelVersion, chosen: Sequence[int]) -> SeenLengths:
    before = find(connection, model)
    return _put(connection, model, replace(before, since=0, chosen=tuple(chosen)))


def refuse_padding(connection: Connection, model: ModelVersion, failure: str) -> SeenLengths:
    """Store why no request of a version is padded any more; the first reason stays."""
    before = find(connection, model)
    failure = before.padding_failure or failure
    return _put(connection, model, replace(before, padding_failure=failure))


def forget(connection: Connection, name: str, version: int) -> None:
    connection.execute(delete(lengths).where(lengths.c.name == name, lengths.c.version == version))


def _put(connection: Connection, model: ModelVersion, seen: SeenLengths) -> SeenLengths:
    row = {"name": model.name, "version": model.version, "sha256": model.sha256}
    put_row(connection, lengths, {**row, "seen": to_json(seen)})
    return seen
