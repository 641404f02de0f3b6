"""Nodes that share files: each with a store folder of its own, all with one database and place."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge
from safetensors.numpy import save
from sqlalchemy import URL, text

from braid.compiler.options import ModelOptions
from braid.server.fleet.files.cache import FileCache
from braid.server.fleet.files.object_files import ObjectFiles
from braid.server.fleet.files.place import ObjectPlace, open_place
from braid.server.fleet.metrics import OPERATIONS, FileMetrics
from braid.server.fleet.store import FleetStore
from braid.server.store.records import ReceivedUpload, Registration
from tests.server.jobs.fakes import template, write_artefact
from tests.server.store.shared_sqlite import let_others_open


def value(metric: Counter | Gauge) -> float:
    [family] = metric.collect()
    return float(family.samples[0].value)


class Observed(FileMetrics):
    """Remembers which files were fetched and put."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry())
        self.fetches: list[tuple[str, str]] = []
        self.puts: list[str] = []

    def fetched(self, kind: str, source: str, size_bytes: int) -> None:
        self.fetches.append((kind, source))

    def put(self, kind: str, size_bytes: int) -> None:
        self.puts.append(kind)

    @property
    def failed(self) -> list[str]:
        """Operations that failed, each as often as it did."""
        return [name for name in OPERATIONS for _ in range(int(value(self.failures.labels(name))))]


class Node:
    def __init__(
        self, folder: Path, database: URL, place: ObjectPlace, cache_bytes: int = 0
    ) -> None:
        let_others_open(database)
        self.store = FleetStore.open(folder, database=database)
        self.place = place
        self.seen = Observed()
        self.serving: set[str] = set()
        self.cache = FileCache(self.store.folder, cache_bytes, lambda: self.serving, self.seen)
        self.files = ObjectFiles(place, self.store, self.cache, self.seen, grace_s=3600.0)

    async def sweep(self, grace_s: float = 0.0) -> int:
        """Remove what no row needs; returns the number of objects."""
        return await self.files.sweep(grace_s)

    def received(self, content: bytes) -> ReceivedUpload:
        """A file that was received, under its temporary name."""
        part = self.store.folder.new_part()
        part.write_bytes(content)
        return ReceivedUpload(part, hashlib.sha256(content).hexdigest(), len(content))

    async def register(self, name: str, received: ReceivedUpload) -> Registration:
        """Keep an upload, then store its rows."""
        await self.files.keep_upload(received)
        return await self.store_rows(name, received)

    async def store_rows(self, name: str, received: ReceivedUpload) -> Registration:
        """Store the rows of an upload that was kept."""
        store = self.store
        return await self.files.stored_with(
            lambda: self.files.keep_upload(received),
            lambda: store.call(store.register, name, received, ModelOptions()),
        )

    def imported(self, sha256: str, weights: bytes = b"weights" * 1000) -> Path:
        """Write an artefact into the folder, as an import does."""
        artefact = self.store.folder.artefact(sha256)
        saved = save({"w": np.frombuffer(weights, np.uint8)})
        write_artefact(artefact, sha256, template(), weights=saved)
        return artefact

    def age(self, seconds: float = 1e6) -> None:
        """Let so many seconds pass for all objects."""

        with self.store._database.engine.begin() as connection:
            connection.execute(text(f"UPDATE objects SET touched_at = touched_at - {seconds}"))


@contextmanager
def nodes(
    folder: Path,
    count: int,
    url: str | None = None,
    cache_bytes: int = 0,
    database: URL | None = None,
) -> Iterator[list[Node]]:
    """Some nodes of one database, SQLite if not given, and one place: a folder, or ``url``."""
    database = database or URL.create("sqlite", database=str(folder / "fleet.db"))
    place = url or str(folder / "shared")
    made = [
        Node(folder / f"node{number}", database, open_place(place), cache_bytes)
        for number in range(count)
    ]
    try:
        yield made
    finally:
        for node in made:
            node.store.close()


def objects_in(folder: Path) -> list[Path]:
    """Objects of a shared folder, without its marker."""
    return sorted(path for path in (folder / "shared").rglob("*.*") if path.is_file())
