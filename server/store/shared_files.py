"""Files that the servers of one store share: uploads, samples and artefacts, by digest.

    registration ──keep_upload──> shared place        (before the rows that need it are stored)
    import ───────keep_artefact─> shared place        (before the model serves)
    job, restore ─fetch_*───────> the store's folder  (where all other parts look for files)

Of a single server the store's folder is the shared place: ``Files`` does nothing. Those of several
servers are in ``braid.server.fleet.files``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from braid.server.store.records import ReceivedUpload

T = TypeVar("T")


class Files:
    """Files of one server: its folder has them all, for good. Belongs to the event loop.

    Of several servers, every call but ``in_use`` may raise ``Unavailable`` (the shared place does
    not answer; again in a moment), ``ResourceExhausted`` (it is full) or ``DiskFailure`` (this
    server's disk is).
    """

    async def start(self) -> None:
        """Check that the shared place can be used, and look after it; StartupError: it cannot."""

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
        """Bring a sound artefact into the folder, if it is anywhere, or raise DamagedArtefact."""

    def in_use(self, digest: str) -> AbstractContextManager[None]:
        """Keep the files of a digest in the store's folder while the context is open."""
        return nullcontext()

    async def stored_with(
        self, keep: Callable[[], Awaitable[None]], store_rows: Callable[[], Awaitable[T]]
    ) -> T:
        """Store rows that need files, kept again by ``keep`` if gone; else raises Unavailable."""
        return await store_rows()
