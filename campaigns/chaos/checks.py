"""What must hold of a server and its store: after each blow, and more of it once all is calm.

after a blow   the front end lives, the database is sound, what serves has its files
calm           READY models answer; nothing waits; rows and files agree; nothing is left over
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

from braid.server.models.residency import ORDER_FILE
from campaigns.chaos.blows import FRONT_END, by_kind
from campaigns.chaos.surroundings import Surroundings
from tests.service.server_process import ServerProcess

USUAL = {FRONT_END: 1, "fork server": 1, "worker": 1, "bench": 1, "importer": 0}
"""Processes of a calm server, at most."""

MORE_DESCRIPTORS = 24
"""Descriptors that a process may have beyond those it had when it was calm first."""

ENDED_STATES = ("READY", "UNSCHEDULED", "FAILED", "CANCELLED")
_DATABASE = frozenset({"lock", "braid.db", "braid.db-wal", "braid.db-shm"})
_FOLDERS = frozenset({"uploads", "artefacts", "samples", "schedules", "measurements"})
_KEPT = _DATABASE | _FOLDERS | {ORDER_FILE}
_OF_LIBRARIES = frozenset({".ses"})  # one file of ONNX Runtime, of the same name each time
_LABEL = re.compile(r'[{,]model="([^"]*)"')


class StoreFiles:
    """Database and files of a store, read from outside while a server has them."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def rows(self, query: str) -> list[tuple[str, ...]]:
        """Answer of the database to a query."""
        path = f"file:{self._root / 'braid.db'}?mode=ro"
        connection = sqlite3.connect(path, uri=True, timeout=60)
        try:
            return list(connection.execute(query))
        finally:
            connection.close()

    def faults(self) -> list[str]:
        """What is wrong with the database, or lacks files, at any moment."""
        broken = [f"integrity: {row[0]}" for row in self.rows("PRAGMA integrity_check")]
        broken = [fault for fault in broken if fault != "integrity: ok"]
        without = self._without_files()
        # What is being deleted loses its files before its row changes: look at the rows again.
        return broken + [f"SERVING without files: {fault}" for fault in without & self._serving()]

    def _serving(self) -> set[str]:
        query = "SELECT sha256 FROM models WHERE state = 'SERVING' AND deleted_unix IS NULL"
        return {digest for (digest,) in self.rows(query)}

    def _without_files(self) -> set[str]:
        artefacts = self._root / "artefacts"
        return {
            digest
            for digest in self._serving()
            if not (artefacts / digest / "graph.json").is_file()
        }

    def leftovers(self) -> list[str]:
        """Files that no row names; for moments in which no job runs and nothing is uploaded."""
        rows = self.rows("SELECT DISTINCT sha256 FROM models WHERE deleted_unix IS NULL")
        digests = {digest for (digest,) in rows}
        folders = {"artefacts": digests, "uploads": set(), "samples": set()}
        return [
            f"left over: {folder}/{entry.name}"
            for folder, needed in folders.items()
            for entry in (self._root / folder).iterdir()
            if entry.name not in needed
        ] + [
            f"left over: {entry.name}" for entry in self._root.iterdir() if entry.name not in _KEPT
        ]

    def unfinished_jobs(self) -> int:
        """Number of jobs that have not ended."""
        states = ", ".join(f"'{state}'" for state in ENDED_STATES)
        [(count,)] = self.rows(f"SELECT count(*) FROM jobs WHERE state NOT IN ({states})")
        return int(count)


class Descriptors:
    """Open descriptors of each process, beside those it had when it was first looked at."""

    def __init__(self) -> None:
        self.first: dict[psutil.Process, int] = {}
        self.most_more = 0

    def faults(self, server: ServerProcess) -> list[str]:
        """Processes that have many more than at first."""
        grown = []
        for kind, processes in by_kind(server).items():
            for process in processes:
                with suppress(psutil.NoSuchProcess, FileNotFoundError):  # it has ended
                    now = process.num_fds()
                    more = now - self.first.setdefault(process, now)
                    self.most_more = max(self.most_more, more)
                    if more > MORE_DESCRIPTORS:
                        grown.append(f"a {kind} has {more} descriptors more: {_targets(process)}")
        return grown


def _targets(process: psutil.Process) -> dict[str, int]:
    """What the descriptors of a process are, by kind."""
    links = Path(f"/proc/{process.pid}/fd").iterdir()
    return dict(Counter(re.sub(r"\d+", "N", str(link.readlink())) for link in links))


def process_faults(server: ServerProcess) -> list[str]:
    """Processes that a calm server should not have, also dead ones that nobody waited for."""
    faults = [
        f"{len(processes)} of {kind}"
        for kind, processes in by_kind(server).items()
        if len(processes) > USUAL[kind]
    ]
    return faults + [f"zombie: {child}" for child in server.children if _is_zombie(child)]


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended
        return False


def leftovers_beside(around: Surroundings, shared_memory: Collection[str]) -> list[str]:
    """Temporary files, and shared memory that was not there before."""
    names = {entry.name for entry in around.temporary.iterdir()} - _OF_LIBRARIES
    temporary = [f"left over: tmp/{name}" for name in sorted(names)]
    objects = set(objects_of_shared_memory()) - set(shared_memory)
    return temporary + [f"left over: /dev/shm/{name}" for name in objects]


def objects_of_shared_memory() -> list[str]:
    """Names in /dev/shm."""
    return sorted(entry.name for entry in Path("/dev/shm").iterdir())


def metric_faults(server: ServerProcess, models: Collection[str]) -> list[str]:
    """Series of models that are gone, and what is still held while nobody asks."""
    series = server.http("/metrics")
    gone = set(_LABEL.findall(series)) - set(models) - {"_unknown", ""}
    held = ("braid_queue_depth_requests", "braid_calls_memory_bytes", "braid_shared_memory_bytes")
    return [f"series of {name}" for name in sorted(gone)] + [
        f"{name} is {value:.0f}" for name in held if (value := server.metric(name))
    ]
