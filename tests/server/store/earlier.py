"""Stores as versions up to 2f0059c left them: schedules and measurements in rows of SQLite."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from braid.compiler.result_files import MEASUREMENTS, SCHEDULES, ResultFiles, ScheduleFile
from tests.server.store.schema_0002 import statements_0002


def put_into_rows(root: Path) -> tuple[int, int]:
    """Move the files of a closed store into rows of its database, which is made if missing.

    Returns the numbers of schedules and of measurements.
    """
    files, paths = ResultFiles(root), sorted((root / SCHEDULES).glob("*/*.json"))
    stored = [ScheduleFile.from_bytes(path.read_bytes()) for path in paths]
    measured = {key: files.measurements(key) for key in {one.key.device_key for one in stored}}
    database = root / "braid.db"
    is_new = not database.exists()
    with closing(sqlite3.connect(database)) as rows, rows:
        for statement in statements_0002("sqlite") if is_new else ():
            rows.execute(statement)
        for one in stored:
            key = one.key
            facts = key.id, key.model_digest, key.device_key, key.batch_size
            row = *facts, json.dumps(key.to_json()), one.schedule, one.stored_unix
            rows.execute("INSERT INTO schedules VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if one.graph != "null":
                rows.execute("INSERT INTO graphs VALUES (?, ?)", (key.id, one.graph))
        for device_key, measurements in measured.items():
            latest = {one.signature: one for one in measurements}  # rows hold no earlier ones
            values = [(device_key, *one) for one in latest.values()]
            rows.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?)", values)
    for name in (SCHEDULES, MEASUREMENTS):
        shutil.rmtree(root / name)
    return len(stored), sum({len({one.signature for one in m}) for m in measured.values()})


def rows_in(root: Path) -> list[int]:
    """Numbers of rows of the tables of results."""
    with closing(sqlite3.connect(root / "braid.db")) as rows:
        tables = "schedules", "graphs", "measurements"
        return [rows.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables]
