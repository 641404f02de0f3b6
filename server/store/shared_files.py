"""Files that the servers of one store share: uploads, samples and artefacts, by digest.

    registration ──keep_upload──> shared place        (before the rows that need it are stored)
    import ───────keep_artefact─> shared place        (before the model serves)
    job, restore ─fetch─────────> the store's folder  (where all other parts look for files)

Of a single server the store's folder is the shared place: ``Files`` does nothing. Those of several
servers are in ``braid.server.fleet.files``.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from braid.core.errors import BraidError, InvalidArtefact
from braid.engine.importer.host.report import check_files, file_digest
from braid.engine.importer.host.samples import digest_of, read_samples
from braid.server.store.files import StoreFolder
from braid.server.store.records import ReceivedUpload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of files, each named by a digest."""

    name: str  # first part of its objects' keys
    path: Callable[[StoreFolder, str], Path]
    check: Callable[[Path, str], None]  # raises BraidError or OSError; reads all of a file
    is_folder: bool = False

    def is_sound(self, folder: StoreFolder, digest: str) -> bool:
        """True if the file of a digest is in the folder, and what it should be. Blocks."""
        try:
            self.check(self.path(folder, digest), digest)
        except (BraidError, OSError):
            return False
        return True


def _check_upload(path: Path, digest: str) -> None:
    if file_digest(path) != digest:
        raise InvalidArtefact("the upload was changed")


def _check_samples(path: Path, digest: str) -> None:
    if digest_of(read_samples(path)) != digest:
        raise InvalidArtefact("the samples were changed")


UPLOAD = FileKind("uploads", StoreFolder.upload, _check_upload)
SAMPLES = FileKind("samples", StoreFolder.sample_file, _check_samples)
ARTEFACT = FileKind("artefacts", StoreFolder.artefact, check_files, is_folder=True)


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

    async def fetch(self, kind: FileKind, digest: str) -> None:
        """Bring a sound file into the folder, unless it is there or nowhere; or DamagedArtefact."""

    def in_use(self, digest: str) -> AbstractContextManager[None]:
        """Keep the files of a digest in the store's folder while the context is open."""
        return nullcontext()

    async def stored_with(
        self, keep: Callable[[], Awaitable[None]], store_rows: Callable[[], Awaitable[T]]
    ) -> T:
        """Store rows that need files, kept again by ``keep`` if gone; else raises Unavailable."""
        return await store_rows()
