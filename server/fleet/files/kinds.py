"""Kinds of shared files: where they lie in the store's folder, and what makes them sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from braid.core.errors import BraidError, InvalidArtefact
from braid.engine.importer.host.report import check_files, file_digest
from braid.engine.importer.host.samples import digest_of, read_samples
from braid.server.store.files import StoreFolder


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
