"""Lengths of the requests of each version, which were chosen, and whether padding was wrong.

Servers that share the database add to the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, delete, select

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
    rows = {int(length): count for length, count in row.seen["rows"].items()}
    failure = row.seen.get("padding_failure", "")
    return SeenLengths(rows, row.seen["since"], tuple(row.seen["chosen"]), failure)


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
    rows = {str(length): seen.rows[length] for length in sorted(seen.rows)}
    document = {"rows": rows, "since": seen.since, "chosen": list(seen.chosen)}
    if seen.padding_failure:
        document["padding_failure"] = seen.padding_failure
    row = {"name": model.name, "version": model.version, "sha256": model.sha256, "seen": document}
    put_row(connection, lengths, row)
    return seen
