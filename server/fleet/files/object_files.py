"""Files of a store that several servers share, by digest: put once, fetched where they are needed.

    keep_*   a PRESENT object? ──no──> row PENDING ──> put ──> row PRESENT          (puts.py)
    fetch_*  a sound file here? ──no──> object ──digest checked──> renamed here  (fetches.py)
    sweep    rows of no use ──> DELETING ──> objects deleted ──> no rows           (sweep.py)

The store's folder is a bounded cache (``cache.py``). Which objects exist is known by their rows
(``braid.server.fleet.tables.objects``).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from braid.core.background import BackgroundTasks
from braid.core.errors import Unavailable
from braid.server.fleet.files.cache import FileCache
from braid.server.fleet.files.fetches import Fetches
from braid.server.fleet.files.interface import FilesGone, MaySweep, always
from braid.server.fleet.files.kinds import ARTEFACT, SAMPLES, UPLOAD
from braid.server.fleet.files.place import ObjectPlace
from braid.server.fleet.files.puts import Puts
from braid.server.fleet.files.sweep import FileSweep
from braid.server.fleet.metrics import FileMetrics
from braid.server.fleet.store import FleetStore
from braid.server.store.records import ReceivedUpload
from braid.server.store.shared_files import Files

log = logging.getLogger("braid.files")

T = TypeVar("T")

KEEP_TRIES = 3
"""Tries to store rows that need shared files, each of which a sweep came before."""


class ObjectFiles(Files):
    """Shared files of a store whose database is shared, too. Belongs to the event loop."""

    def __init__(
        self,
        place: ObjectPlace,
        store: FleetStore,
        cache: FileCache,
        observer: FileMetrics,
        grace_s: float,
        may_sweep: MaySweep = always,
    ) -> None:
        """Ask nothing yet.

        Args:
            place: where the objects are.
            store: their rows, and the folder of the cache.
            cache: of the same folder.
            grace_s: what no row needs is removed from the place after so many seconds unused.
            may_sweep: returns whether this is the server that sweeps now.
        """
        store.need_objects()
        self._place = place
        self._store = store
        self._cache = cache
        self._puts = Puts(place, store, observer, self._claim)
        self._fetches = Fetches(place, store, cache, observer)
        self._sweep = FileSweep(place, store, observer, grace_s, may_sweep)
        self._background = BackgroundTasks("shared-files")
        self._is_claimed = False

    async def start(self) -> None:
        """Check that the place can be used, and begin to sweep it.

        A place that does not answer now does not stop a start: what is in the cache serves.

        Raises:
            StartupError: the bucket or the credentials are wrong, or it is another database's.
        """
        try:
            await self._claim()
        except Unavailable as error:
            log.error("started without the shared files: %s", error)
        await self._cache.make_room()
        self._background.start(self._sweep.run(self._claim, self._used))

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
                await self._puts.keep(kind, digest, path)

    async def keep_artefact(self, sha256: str) -> None:
        await self._puts.keep(ARTEFACT, sha256, self._store.folder.artefact(sha256))

    async def fetch_upload(self, sha256: str) -> None:
        await self._fetches.fetch(UPLOAD, sha256)

    async def fetch_samples(self, digest: str) -> None:
        await self._fetches.fetch(SAMPLES, digest)

    async def fetch_artefact(self, sha256: str) -> None:
        await self._fetches.fetch(ARTEFACT, sha256)

    def in_use(self, digest: str) -> AbstractContextManager[None]:
        return self._cache.in_use(digest)

    async def stored_with(
        self, keep: Callable[[], Awaitable[None]], store_rows: Callable[[], Awaitable[T]]
    ) -> T:
        for _ in range(KEEP_TRIES):
            try:
                return await store_rows()
            except FilesGone:
                await keep()
        raise FilesGone

    def _used(self) -> tuple[set[str], set[str]]:
        """Digests that this server uses, and keys that it puts now."""
        return self._cache.used(), set(self._puts.keys)

    async def _claim(self) -> None:
        """Make sure, once, that the place is this database's."""
        if not self._is_claimed:
            store = self._store
            if await store.call(store.owner) is None:
                await self._place.check_unclaimed()
            identity = await store.call(store.identity, secrets.token_hex(32))
            await self._place.claim(identity)
            self._is_claimed = True
