"""What jobs, models and queries ask of the files that servers share.

    registration ──keep_upload──> shared place        (before the rows that need it are stored)
    import ───────keep_artefact─> shared place        (before the model serves)
    job, restore ─fetch_*───────> the store's folder  (where all other parts look for files)

Of one server the store's folder is the shared place, and every call returns at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from braid.core.errors import StoreUnavailable
from braid.server.store.records import ReceivedUpload

T = TypeVar("T")

KEEP_TRIES = 3
"""Tries to store rows that need shared files, each of which a sweep came before."""


class SharedFilesAway(StoreUnavailable):
    """The shared files cannot be reached, or fail."""

    retry_after_s = 5.0

    def __init__(self) -> None:
        super().__init__(
            "the shared files (BRAID_FILES) do not answer; what serves goes on, try again"
        )


class ObjectGone(StoreUnavailable):
    """Shared files that were put are gone again before rows needed them: put them once more."""

    def __init__(self) -> None:
        super().__init__("the shared files of this model were removed meanwhile; try again")


class SharedFiles(Protocol):
    """Uploads, samples and artefacts of all servers of a store. Belongs to the event loop.

    Every call but ``in_use`` may raise ``Unavailable`` (the shared place does not answer; again
    in a moment), ``ResourceExhausted`` (it is full) or ``DiskFailure`` (this server's disk is).
    """

    async def start(self) -> None:
        """Check that the shared place can be used, and begin to look after it.

        Raises:
            StartupError: one line that says what to change.
        """

    async def stop(self) -> None:
        """End what ``start`` began."""

    async def keep_upload(self, received: ReceivedUpload) -> None:
        """Put an upload and its samples where every server finds them; returns once they are safe.

        Its files are still under their temporary names, or adopted by the store's folder.
        """

    async def keep_artefact(self, sha256: str) -> None:
        """Put the artefact of an upload where every server finds it; returns once it is safe."""

    async def fetch_upload(self, sha256: str) -> None:
        """Bring an upload into the store's folder, unless it is there or nowhere."""

    async def fetch_samples(self, digest: str) -> None:
        """Bring samples into the store's folder, unless they are there or nowhere."""

    async def fetch_artefact(self, sha256: str) -> None:
        """Bring a sound artefact into the store's folder, unless it is there or nowhere.

        Raises:
            DamagedArtefact: what is shared is not what was put there.
        """

    def in_use(self, digest: str) -> AbstractContextManager[None]:
        """Keep the files of a digest in the store's folder while the context is open."""


class FilesObserver(Protocol):
    """Counts of what happens to shared files."""

    def cache_is(self, size_bytes: int, count: int) -> None:
        """Take the bytes and the number of files and artefacts in the cache."""

    def evicted(self, size_bytes: int) -> None:
        """Count a file that left the cache."""

    def fetched(self, kind: str, source: str, size_bytes: int) -> None:
        """Count a file that was asked for, and where it came from: cache, shared or nowhere."""

    def put(self, kind: str, size_bytes: int) -> None:
        """Count a file that was put into the shared place."""

    def failed(self, operation: str) -> None:
        """Count a put, fetch or sweep that failed."""

    def damaged(self) -> None:
        """Count an object or a file in the cache that was not what it should be."""

    def swept(self, count: int) -> None:
        """Count a sweep of the shared place, and the objects that it removed."""


class StoreFolderFiles:
    """Files of one server: its folder has them all, for good."""

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    async def keep_upload(self, received: ReceivedUpload) -> None:
        """Do nothing: the store adopts the files."""

    async def keep_artefact(self, sha256: str) -> None:
        """Do nothing: the import put it in place, on disk for good."""

    async def fetch_upload(self, sha256: str) -> None:
        """Do nothing."""

    async def fetch_samples(self, digest: str) -> None:
        """Do nothing."""

    async def fetch_artefact(self, sha256: str) -> None:
        """Do nothing."""

    @contextmanager
    def in_use(self, digest: str) -> Iterator[None]:
        """Do nothing: no file leaves the folder while its model is registered."""
        yield


async def stored_with(
    keep: Callable[[], Awaitable[None]], store_rows: Callable[[], Awaitable[T]]
) -> T:
    """Store rows that need shared files, which were kept; keep them again if they are gone.

    Raises:
        ObjectGone: they are gone each time.
    """
    for _ in range(KEEP_TRIES):
        try:
            return await store_rows()
        except ObjectGone:
            await keep()
    raise ObjectGone
