"""Putting files into the shared place, so that no sweep takes what is put.

    hold ──PRESENT──> done
      └──none──> row PENDING ──> object ──> row PRESENT
                     └── a sweep took it meanwhile: once more, under another key

A put that fails or is cut off leaves a row that is never PRESENT, and perhaps an object: swept.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from braid.core.errors import BraidError, StoreUnavailable
from braid.core.keyed_locks import KeyedLocks
from braid.engine.importer.host.report import file_digest
from braid.server.fleet.files.interface import FilesGone
from braid.server.fleet.files.kinds import FileKind
from braid.server.fleet.files.packing import pack
from braid.server.fleet.files.place import ObjectPlace
from braid.server.fleet.metrics import FileMetrics
from braid.server.fleet.store import FleetStore
from braid.server.fleet.tables.objects import StoredObject
from braid.server.store.disk import DiskWatch

TRIES = 3
"""Tries to put a file, if a sweep comes before each of them ends."""


class Puts:
    """Puts of one server. Belongs to the event loop."""

    def __init__(
        self,
        place: ObjectPlace,
        store: FleetStore,
        observer: FileMetrics,
        before: Callable[[], Awaitable[None]],
    ) -> None:
        """Put nothing yet; ``before`` each put is made sure that the place may be used."""
        self.keys: set[str] = set()
        """Keys of the objects that are being put now."""
        self._place = place
        self._store = store
        self._observer = observer
        self._before = before
        self._turns = KeyedLocks()
        self._disk = DiskWatch(store.folder.root)

    async def keep(self, kind: FileKind, digest: str, path: Path) -> None:
        """Put a file unless it is there; returns once it is safe from crashes and sweeps.

        Raises:
            Unavailable: the place or the database does not answer, or sweeps came in between.
            ResourceExhausted: the place is full.
            DiskFailure: this server's disk is full, read-only or failing.
        """
        name = f"{kind.name}/{digest}"
        async with self._turns.of(name):
            for _ in range(TRIES):
                if await self._store.call(self._store.hold_object, name):
                    return
                await self._before()
                async with self._as_file(kind, digest, path) as (file, sha256):
                    if await self._put(kind, name, file, sha256):
                        return
        raise FilesGone

    async def _put(self, kind: FileKind, name: str, file: Path, sha256: str) -> bool:
        """Put a file under a new key; False: a sweep has taken it."""
        size_bytes = (await asyncio.to_thread(file.stat)).st_size
        key = f"{name}.{secrets.token_hex(8)}"
        store = self._store
        self.keys.add(key)
        try:
            await store.call(store.begin_object, StoredObject(key, sha256, size_bytes))
            try:
                await self._place.put(key, file)
            except BraidError:
                self._observer.failed("put")
                with suppress(BraidError):  # it is PENDING, and swept later
                    await store.call(store.abandon_object, key)
                raise
            is_safe = await store.call(store.finish_object, key)
        finally:
            self.keys.discard(key)
        if is_safe:
            self._observer.put(kind.name, size_bytes)
        else:
            with suppress(StoreUnavailable):
                await self._place.delete([key])
        return is_safe

    @asynccontextmanager
    async def _as_file(
        self, kind: FileKind, digest: str, path: Path
    ) -> AsyncIterator[tuple[Path, str]]:
        """Yield a file of the bytes to put, and their SHA-256."""
        if not kind.is_folder:
            yield path, await asyncio.to_thread(file_digest, path)
            return
        packed = self._store.folder.new_part()
        try:
            with self._disk.writing():
                sha256 = await asyncio.to_thread(pack, path, packed)
            yield packed, sha256
        finally:
            await asyncio.to_thread(packed.unlink, missing_ok=True)
