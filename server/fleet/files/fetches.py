"""Fetching files from the shared place into the store's folder.

    sound here? ──yes──> used
        └──no──> each PRESENT object ──> .part, hashed ──> sound? ──> renamed into place
                          └── missing or changed: DAMAGED, and the next one

One fetch of a digest at a time; the others find what it brought.
"""

import asyncio
import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

from braid.core.errors import (
    DamagedArtefact,
    DiskFailure,
    DiskTrouble,
    InvalidArtefact,
    ResourceExhausted,
    StoreUnavailable,
)
from braid.core.removal import remove_folder
from braid.server.fleet.files.cache import FileCache
from braid.server.fleet.files.packing import new_file, unpack
from braid.server.fleet.files.place import ObjectPlace
from braid.server.fleet.metrics import FileMetrics
from braid.server.fleet.store import FleetStore
from braid.server.fleet.tables.objects import ObjectState, StoredObject
from braid.server.store.disk import DiskWatch
from braid.server.store.shared_files import FileKind

log = logging.getLogger("braid.files")

AT_ONCE = 4

TRIES = 2
"""Tries of an object that came with other bytes than were put: the network may have erred."""


class Fetches:
    """Fetches of one server. Belongs to the event loop."""

    def __init__(
        self, place: ObjectPlace, store: FleetStore, cache: FileCache, metrics: FileMetrics
    ) -> None:
        self._place = place
        self._store = store
        self._cache = cache
        self._metrics = metrics
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._disk = DiskWatch(store.folder.root)

    async def fetch(self, kind: FileKind, digest: str) -> None:
        """Bring a file into the store's folder, unless a sound one is there, or none anywhere.

        Raises:
            DamagedArtefact: every object of it is missing or changed.
            Unavailable: the place or the database does not answer.
            DiskFailure: this server's disk is full, read-only or failing.
        """
        folder = self._store.folder
        path = kind.path(folder, digest)
        with self._cache.in_use(digest):
            async with self._cache.turns.of(digest), self._at_once:
                if await asyncio.to_thread(kind.is_sound, folder, digest):
                    with suppress(OSError):
                        await asyncio.to_thread(os.utime, path)  # used now
                    self._metrics.fetched(kind.name, "cache", 0)
                    return
                if await asyncio.to_thread(os.path.lexists, path):
                    self._metrics.damages.inc()
                    log.warning("a file of the cache is damaged", extra={"file": str(path)})
                try:
                    await self._fetch(kind, digest)
                except (StoreUnavailable, ResourceExhausted):
                    self._metrics.failures.labels("fetch").inc()
                    raise

    async def _fetch(self, kind: FileKind, digest: str) -> None:
        store = self._store
        objects = await store.call(store.find_objects, f"{kind.name}/{digest}")
        for stored in objects:
            if await self._bring(kind, digest, stored):
                if stored.state is ObjectState.DAMAGED:  # another server, or network, erred
                    await store.call(store.mark_object, stored.key, ObjectState.PRESENT)
                self._metrics.fetched(kind.name, "shared", stored.size_bytes)
                return
            await store.call(store.mark_object, stored.key, ObjectState.DAMAGED)
        self._metrics.fetched(kind.name, "nowhere", 0)
        if objects:
            keys = ", ".join(entry.key for entry in objects)
            raise DamagedArtefact(f"the shared files {self._place.url} lost or changed {keys}")

    async def _bring(self, kind: FileKind, digest: str, stored: StoredObject) -> bool:
        """Bring an object into the folder; False: it is gone, or not what was put."""
        for _ in range(TRIES):
            try:
                await self._with_room(kind, digest, stored)
            except FileNotFoundError:
                log.error("a shared file is missing", extra={"object": stored.key})
                return False
            except InvalidArtefact as error:
                extra = {"object": stored.key, "reason": str(error)}
                log.error("a shared file is damaged", extra=extra)
                self._metrics.damages.inc()
            else:
                return True
        return False

    async def _with_room(self, kind: FileKind, digest: str, stored: StoredObject) -> None:
        """Download an object; a full disk is cleared of what is not in use, once."""
        await self._cache.make_room(stored.size_bytes * (2 if kind.is_folder else 1))
        try:
            await self._download(kind, digest, stored)
        except DiskFailure as error:
            is_full = error.trouble in (DiskTrouble.FULL, DiskTrouble.QUOTA)
            if not is_full or not await self._cache.remove_unused():
                raise
            await self._download(kind, digest, stored)

    async def _download(self, kind: FileKind, digest: str, stored: StoredObject) -> None:
        """Download an object, check it, and rename it into place.

        Raises FileNotFoundError: there is no such object. InvalidArtefact: it is not what was put.
        """
        part = self._store.folder.new_part()
        sha256 = hashlib.sha256()
        try:
            with self._disk.writing():
                with new_file(part) as file:  # at once: a thread's file would outlive its caller

                    def write(content: memoryview) -> None:
                        sha256.update(content)
                        file.write(content)

                    await self._place.fetch(stored.key, stored.size_bytes, write)
                if sha256.hexdigest() != stored.sha256:
                    raise InvalidArtefact(
                        f"it has SHA-256 {sha256.hexdigest()}, not {stored.sha256}"
                    )
                await asyncio.to_thread(self._place_in_folder, kind, digest, part)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)

    def _place_in_folder(self, kind: FileKind, digest: str, part: Path) -> None:
        """Rename a download to its name, unpacked if it is a folder; replaces what is there."""
        folder = self._store.folder
        path = kind.path(folder, digest)
        if not kind.is_folder:
            part.replace(path)
            return
        unpacked = part.with_suffix(".unpacked")
        try:
            unpack(part, unpacked)
            kind.check(unpacked, digest)
            folder.remove_artefact(digest)
            unpacked.rename(path)
        finally:
            remove_folder(unpacked)
