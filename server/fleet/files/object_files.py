"""Files of a store that several servers share, by digest: put once, fetched where they are needed.

    keep_*   a PRESENT object? ──no──> row PENDING ──> object ──> row PRESENT
    fetch    a sound file here? ──no──> object ──digest checked──> renamed here    (fetches.py)
    sweep    rows of no use ──> DELETING ──> objects deleted ──> no rows

The store's folder is a bounded cache (``cache.py``). Which objects exist is known by their rows
(``braid.server.fleet.tables.objects``). A put that fails or is cut off leaves a row that is never
PRESENT, and perhaps an object: both are swept. Two sweeps at once, or one that slept in the middle,
do no harm: an object that was condemned is never used again, and its key never given to another.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from braid.core.background import BackgroundTasks
from braid.core.errors import BraidError, Unavailable
from braid.core.keyed_locks import KeyedLocks
from braid.engine.importer.host.report import file_digest
from braid.server.fleet.files.cache import FileCache
from braid.server.fleet.files.fetches import Fetches
from braid.server.fleet.files.packing import pack
from braid.server.fleet.files.place import ObjectPlace
from braid.server.fleet.metrics import FileMetrics
from braid.server.fleet.records import FilesGone
from braid.server.fleet.store import FleetStore
from braid.server.fleet.tables.objects import StoredObject
from braid.server.store.disk import DiskWatch
from braid.server.store.records import ReceivedUpload
from braid.server.store.shared_files import ARTEFACT, SAMPLES, UPLOAD, FileKind, Files

log = logging.getLogger("braid.files")

T = TypeVar("T")

TRIES = 3
"""Tries to put a file, or to store rows that need it, each of which a sweep came before."""

SWEEPS = 6
"""Sweeps in a grace time."""


class ObjectFiles(Files):
    """Shared files of a store whose database is shared, too. Belongs to the event loop."""

    def __init__(
        self,
        place: ObjectPlace,
        store: FleetStore,
        cache: FileCache,
        metrics: FileMetrics,
        grace_s: float,
    ) -> None:
        """Ask nothing yet; what no row needs is removed from the place after ``grace_s``."""
        store.need_objects()
        self._place = place
        self._store = store
        self._cache = cache
        self._metrics = metrics
        self._grace_s = grace_s
        self._fetches = Fetches(place, store, cache, metrics)
        self._turns = KeyedLocks()  # by name: this server puts a file once at a time
        self._disk = DiskWatch(store.folder.root)
        self._background = BackgroundTasks("shared-files")
        self._is_claimed = False
        self._deleted: set[str] = set()  # by the last sweep
        self.putting: set[str] = set()
        """Keys of the objects that are being put now."""

    async def start(self) -> None:
        """Check that the place can be used, and begin to sweep it.

        A place that does not answer now does not stop a start: what is in the cache serves. Raises
        StartupError: the bucket or the credentials are wrong, or it is another database's.
        """
        try:
            await self._claim()
        except Unavailable as error:
            log.error("started without the shared files: %s", error)
        await self._cache.make_room()
        self._background.start(self._sweep_now_and_then())

    async def stop(self) -> None:
        self._background.cancel()
        await self._background.ended()

    async def keep_upload(self, received: ReceivedUpload) -> None:
        folder = self._store.folder
        files = [(UPLOAD, received.sha256, received.path)]
        if received.samples is not None:
            files.append((SAMPLES, received.samples.digest, received.samples.path))
        for kind, digest, path in files:
            if path is None or not path.is_file():  # adopted, or imported before
                path = kind.path(folder, digest)
            if path.is_file():
                await self._keep(kind, digest, path)

    async def keep_artefact(self, sha256: str) -> None:
        await self._keep(ARTEFACT, sha256, self._store.folder.artefact(sha256))

    async def fetch(self, kind: FileKind, digest: str) -> None:
        await self._fetches.fetch(kind, digest)

    def in_use(self, digest: str) -> AbstractContextManager[None]:
        return self._cache.in_use(digest)

    async def stored_with(
        self, keep: Callable[[], Awaitable[None]], store_rows: Callable[[], Awaitable[T]]
    ) -> T:
        for _ in range(TRIES):
            try:
                return await store_rows()
            except FilesGone:
                await keep()
        raise FilesGone

    async def sweep(self, grace_s: float) -> int:
        """Remove what no row has needed for so many seconds; returns the number of objects.

        Raises Unavailable: the place or the database does not answer; the next sweep goes on.
        """
        store = self._store
        condemned = await store.call(store.condemn_objects, grace_s)
        await self._place.delete(condemned)
        await store.call(store.forget_objects, condemned, grace_s)
        count = len(set(condemned) - self._deleted)  # rows are kept for the grace time
        self._deleted = set(condemned)
        self._metrics.sweeps.inc()
        self._metrics.removed.inc(count)
        if count:
            log.info("removed shared files of no use", extra={"count": count})
        return count

    async def _sweep_now_and_then(self) -> None:
        """Sweep if no other server has; what fails is tried again the next time."""
        store, pause_s = self._store, self._grace_s / SWEEPS
        while True:
            await asyncio.sleep(pause_s)
            try:
                if self.putting:
                    await store.call(store.touch_objects, set(self.putting))
                await self._claim()
                if await store.call(store.takes_sweep, pause_s):
                    await self.sweep(self._grace_s)
            except BraidError as error:
                self._metrics.failures.labels("sweep").inc()
                log.warning("the shared files were not swept: %s", error)
            except Exception:
                self._metrics.failures.labels("sweep").inc()
                log.exception("the shared files were not swept")

    async def _claim(self) -> None:
        """Make sure, once, that the place is this database's."""
        if not self._is_claimed:
            store = self._store
            if await store.call(store.owner) is None:
                await self._place.check_unclaimed()
            identity = await store.call(store.identity, secrets.token_hex(32))
            await self._place.claim(identity)
            self._is_claimed = True

    async def _keep(self, kind: FileKind, digest: str, path: Path) -> None:
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
                await self._claim()
                async with self._as_file(kind, path) as file:
                    if await self._put(kind, name, file):
                        return
        raise FilesGone

    async def _put(self, kind: FileKind, name: str, file: Path) -> bool:
        """Put a file under a new key; False: a sweep has taken it, so that it cannot be used."""
        store, key = self._store, f"{name}.{secrets.token_hex(8)}"
        sha256 = await asyncio.to_thread(file_digest, file)
        size_bytes = (await asyncio.to_thread(file.stat)).st_size
        self.putting.add(key)
        try:
            await store.call(store.begin_object, StoredObject(key, sha256, size_bytes))
            await self._place.put(key, file)
            is_safe = await store.call(store.finish_object, key)
        except BraidError:
            self._metrics.failures.labels("put").inc()
            raise
        finally:
            self.putting.discard(key)
        if is_safe:
            self._metrics.put(kind.name, size_bytes)
        return is_safe

    @asynccontextmanager
    async def _as_file(self, kind: FileKind, path: Path) -> AsyncIterator[Path]:
        if not kind.is_folder:
            yield path
            return
        packed = self._store.folder.new_part()
        try:
            with self._disk.writing():
                await asyncio.to_thread(pack, path, packed)
            yield packed
        finally:
            await asyncio.to_thread(packed.unlink, missing_ok=True)
