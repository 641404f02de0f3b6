"""Results that an earlier version kept as rows of SQLite, moved into files.

Files are written first, and only then are rows removed: after a crash between the two, moving
begins again and changes nothing that is as new.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from braid.compiler.result_files import NO_GRAPH, Measurement, ResultFiles, ScheduleFile
from braid.core.errors import InvalidArtefact
from braid.core.measurement import is_latency
from braid.core.schedule import schedule_from_json

log = logging.getLogger("braid.store")

Execute = Callable[[str], Iterable[Any]]
"""Runs a statement of SQL; returns its rows."""

_TABLES = ("schedules", "graphs", "measurements")

_SCHEDULES = (
    "SELECT schedule, created_unix, graph FROM schedules LEFT JOIN graphs ON schedule_id = id"
)
_MEASUREMENTS = (
    "SELECT device_key, signature, latency_us, spread, repeats, created_unix FROM measurements "
    "ORDER BY device_key, created_unix"
)


def has_rows(execute: Execute) -> bool:
    """True if there is something to move in a database."""
    return any(row for table in _TABLES for row in execute(f"SELECT 1 FROM {table} LIMIT 1"))


def move_rows(execute: Execute, files: ResultFiles) -> None:
    """Move all schedules, graphs and measurements of a database into files, and log how many.

    Args:
        execute: runs statements in a transaction, which the caller commits.
        files: may hold some of them; what is younger there stays.
    """
    schedules = sum(_moved(files, *row) for row in execute(_SCHEDULES))
    measurements = 0
    for device_key, rows in groupby(execute(_MEASUREMENTS), itemgetter(0)):
        stored = {row.signature: row.stored_unix for row in files.measurements(device_key)}
        moved = [Measurement(*row[1:]) for row in rows]
        fresh = [
            row
            for row in moved
            if is_latency(row.latency_us) and row.stored_unix > stored.get(row.signature, 0.0)
        ]
        files.put_measurements(device_key, fresh)
        measurements += len(fresh)
    for table in _TABLES:
        execute(f"DELETE FROM {table}")
    facts = {"schedules": schedules, "measurements": measurements}
    log.info("the store was converted: results of an earlier version are files now", extra=facts)


def _moved(files: ResultFiles, text: str, stored_unix: float, graph: str | None) -> bool:
    """Write the file of a row; False: it cannot be read, or a file is as new."""
    try:
        key = schedule_from_json(json.loads(text)).key
    except (InvalidArtefact, ValueError, RecursionError) as error:
        log.warning("an unreadable schedule is left out", extra={"reason": str(error)})
        return False
    there = files.find_file(key)
    if there is not None and there.stored_unix >= stored_unix:
        return False
    files.put_file(ScheduleFile(key, stored_unix, _in_a_line(text), _in_a_line(graph or NO_GRAPH)))
    return True


def _in_a_line(text: str) -> str:
    """JSON without line breaks, as rows have it; text that is no JSON counts as none."""
    return NO_GRAPH if "\n" in text else text
