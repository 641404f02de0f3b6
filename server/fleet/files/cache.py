"""The store's folder as a cache of shared files: bounded, the least recently used go first.

What is in use stays: the files of models that serve, and what jobs, restores and fetches work on.
If these alone exceed the limit, the limit is exceeded, and the log says so once.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from braid.core.keyed_locks import KeyedLocks
from braid.server.fleet.metrics import FileMetrics
from braid.server.store.files import StoreFolder
from braid.server.store.quota import size_on_disk

log = logging.getLogger("braid.files")


@dataclass(frozen=True, slots=True)
class _Entry:
    """File or artefact folder in the cache."""

    path: Path
    size_bytes: int
    used_unix: float  # by this server's clock, which only orders them

    @property
    def digest(self) -> str:
        return self.path.name


class FileCache:
    """Files in the store's folder that can be fetched again. Belongs to the event loop."""

    def __init__(
        self,
        folder: StoreFolder,
        limit_bytes: int,
        serving: Callable[[], Collection[str]],
        metrics: FileMetrics,
    ) -> None:
        """Remove nothing yet; ``limit_bytes`` 0 is none, ``serving`` returns digests of models."""
        self.folder = folder
        self.turns = KeyedLocks()
        """By digest: fetches and removals of its files take turns."""
        self._limit_bytes = limit_bytes
        self._serving = serving
        self._metrics = metrics
        self._users: Counter[str] = Counter()
        self._making_room = asyncio.Lock()
        self._is_exceeded = False

    @contextmanager
    def in_use(self, digest: str) -> Iterator[None]:
        self._users[digest] += 1
        try:
            yield
        finally:
            self._users[digest] -= 1
            self._users += Counter()  # forgets those without any

    def _is_used(self, digest: str) -> bool:
        return digest in self._users or digest in self._serving()

    async def make_room(self, size_bytes: int = 0) -> None:
        """Remove what was not used for longest, until so many bytes more fit or all is in use."""
        async with self._making_room:
            entries = await asyncio.to_thread(_entries, self.folder)
            total = sum(entry.size_bytes for entry in entries)
            for entry in sorted(entries, key=lambda entry: entry.used_unix):
                if not self._limit_bytes or total + size_bytes <= self._limit_bytes:
                    break
                if await self._remove(entry):
                    total -= entry.size_bytes
                    entries.remove(entry)
            self._metrics.cache_bytes.set(total)
            self._metrics.cache_files.set(len(entries))
            self._tell_exceeded(total + size_bytes)

    async def remove_unused(self) -> bool:
        """Remove all that is not in use, as the disk is full; returns whether anything went."""
        async with self._making_room:
            entries = await asyncio.to_thread(_entries, self.folder)
            return any([await self._remove(entry) for entry in entries])

    async def _remove(self, entry: _Entry) -> bool:
        """Remove an entry unless it is in use, as what has its turn is: it may ask for room."""
        if self._is_used(entry.digest):
            return False
        async with self.turns.of(entry.digest):
            if self._is_used(entry.digest):
                return False
            with suppress(OSError):
                await asyncio.to_thread(self._unlink, entry.path)
        self._metrics.evictions.inc()
        return True

    def _unlink(self, path: Path) -> None:
        if path.parent == self.folder.artefacts:
            self.folder.remove_artefact(path.name)
        else:
            path.unlink(missing_ok=True)

    def _tell_exceeded(self, total: int) -> None:
        is_exceeded = bool(self._limit_bytes) and total > self._limit_bytes
        if is_exceeded and not self._is_exceeded:
            facts = {"bytes": total, "limit": self._limit_bytes}
            log.warning("what serves takes more than BRAID_MAX_CACHE_BYTES", extra=facts)
        self._is_exceeded = is_exceeded


def _entries(folder: StoreFolder) -> list[_Entry]:
    """Whole files and artefacts in the folder, without what is being received or written."""
    entries = []
    for room in (folder.uploads, folder.artefacts, folder.samples):
        for path in room.iterdir():
            with suppress(OSError):  # removed meanwhile
                if "." not in path.name:
                    facts = path.stat()
                    size_bytes = size_on_disk(path) if path.is_dir() else facts.st_size
                    entries.append(_Entry(path, size_bytes, facts.st_mtime))
    return entries
