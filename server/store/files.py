"""The folder of a store: its layout, its lock, and what a crash left behind."""

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from braid.compiler.result_files import MEASUREMENTS, SCHEDULES
from braid.core.descriptors import Descriptor
from braid.core.disk import sync
from braid.core.errors import DamagedArtefact, InvalidArtefact, StartupError
from braid.core.removal import remove_folder
from braid.engine.importer.host.report import check_files

log = logging.getLogger("braid.jobs")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PARTIAL = re.compile(r"[^.].*\.(part|unpacked|new)|\.(gone|import)-.*")
"""Names of what is being received, written or removed."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Names of what a sweep removed, and of what it left alone as it knows nothing of it."""

    removed: Sequence[str]
    unknown: Sequence[str]


class StoreFolder:
    """Paths of a store, held by one server at a time from ``open`` to ``close``."""

    def __init__(self, root: Path, database: Path | None = None) -> None:
        """Open nothing yet; ``database`` is a SQLite database that lies elsewhere."""
        self.root = root
        self.uploads = root / "uploads"
        self.artefacts = root / "artefacts"
        self.samples = root / "samples"
        self.database = database or root / "braid.db"
        self._locks: list[Descriptor] = []

    def open(self) -> None:
        """Create the folders and take the locks. StartupError: taken, or it cannot be written."""
        results = self.root / SCHEDULES, self.root / MEASUREMENTS
        try:
            for folder in (self.root, self.uploads, self.artefacts, self.samples, *results):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._locks.append(_take_lock(self.root / "lock", self.root))
            database = Path(os.path.realpath(self.database))
            if database.parent != self.root.resolve():
                beside = database.with_name(f"{database.name}.lock")
                self._locks.append(_take_lock(beside, self.database))
                if (of_store := database.with_name("lock")).exists():
                    self._locks.append(_take_lock(of_store, self.database))
        except StartupError:
            self.close()
            raise
        except OSError as error:
            self.close()
            what = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
            raise StartupError(
                f"the store {self.root} cannot be written ({error.filename}: {what}); "
                "choose another folder with BRAID_STORE or --store"
            ) from error

    def close(self) -> None:
        """Release the locks. The kernel does so too when the process dies."""
        while self._locks:
            self._locks.pop().close()

    def upload(self, sha256: str) -> Path:
        return self.uploads / _digest(sha256)

    def artefact(self, sha256: str) -> Path:
        return self.artefacts / _digest(sha256)

    def sample_file(self, digest: str) -> Path:
        return self.samples / _digest(digest)

    def new_part(self) -> Path:
        """Path of a new file for what is not whole yet; a crash leaves it to the next start."""
        return self.uploads / f"{secrets.token_hex(8)}.part"

    def has_artefact(self, sha256: str) -> bool:
        """True if the import is done: folders are renamed into place when complete."""
        return (self.artefact(sha256) / "graph.json").is_file()

    def adopt(self, part: Path, path: Path) -> None:
        """Rename a complete file into place, for good once ``keep`` is called."""
        _new(path).touch(mode=0o600)
        part.rename(path)
        sync(path.parent)

    def keep(self, path: Path) -> None:
        """Keep an adopted file, which the database knows now."""
        _new(path).unlink(missing_ok=True)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.keep(path)

    def remove_artefact(self, sha256: str) -> None:
        """Remove an artefact; half removed, it has no valid name any more."""
        path = self.artefact(sha256)
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            moved = self.artefacts / f".gone-{secrets.token_hex(8)}"
            path.rename(moved)
            remove_folder(moved)

    def whole(self) -> set[str]:
        """Digests of the files and folders that are whole and kept, which have them as names."""
        folders = (folder for folder in self._folders if folder.is_dir())
        entries = (entry for folder in folders for entry in folder.iterdir())
        return {
            entry.name
            for entry in entries
            if _DIGEST.fullmatch(entry.name) and not _new(entry).exists()
        }

    def sweep(
        self,
        uploads: Collection[str],
        artefacts: Collection[str],
        samples: Collection[str],
        recorded: Collection[str],
    ) -> Swept:
        """Remove what a crash left: what never was whole or kept, and what is needed no more.

        All sets hold digests. Files that are not ``recorded`` stay: another database may know them.
        """
        removed, unknown = [], []
        for folder, needed in zip(self._folders, (uploads, artefacts, samples), strict=True):
            for entry in sorted(folder.iterdir()):  # a file before its mark that it is new
                if entry.name in needed:
                    continue
                name = f"{folder.name}/{entry.name}"
                is_ours = entry.name in recorded or _new(entry).exists()
                if not is_ours and not _PARTIAL.fullmatch(entry.name):
                    unknown.append(name)
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
                removed.append(name)
        return Swept(removed, unknown)

    @property
    def _folders(self) -> tuple[Path, Path, Path]:
        return self.uploads, self.artefacts, self.samples


def _new(path: Path) -> Path:
    """Mark of a file that was adopted, and that no row of the database needs yet."""
    return path.with_name(f"{path.name}.new")


def _digest(sha256: str) -> str:
    """Digest, checked to be 64 hexadecimal digits, as it becomes a file name."""
    assert _DIGEST.fullmatch(sha256), sha256
    return sha256


def _take_lock(path: Path, what: Path) -> Descriptor:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link; remove it", str(path))
    lock = Descriptor(os.open(path, flags, 0o600))
    if not stat.S_ISREG(os.fstat(lock.fileno()).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file; remove it", str(path))
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        owner = os.read(lock.fileno(), 20).decode(errors="replace").strip() or "unknown"
        raise StartupError(
            f"the store {what} is in use by another server (process {owner}); stop it or "
            "choose another folder with BRAID_STORE or --store"
        ) from None
    os.ftruncate(lock.fileno(), 0)
    os.pwrite(lock.fileno(), f"{os.getpid()}\n".encode(), 0)
    return lock


def is_sound(folder: StoreFolder, key: str, sha256: str) -> bool:
    """True if an import is done and nothing of it was lost; removes a damaged artefact.

    ``key`` is the artefact's, ``sha256`` the upload's. Raises DamagedArtefact: it is damaged or
    gone, and there is no upload to make another from. Raises SystemShortage.
    """
    try:
        check_files(folder.artefact(key), key)
    except InvalidArtefact as error:
        if not folder.upload(sha256).is_file():
            raise DamagedArtefact(str(error)) from error
        if folder.has_artefact(key):
            log.warning("a damaged artefact is imported again", extra={"reason": str(error)})
        folder.remove_artefact(key)
        return False
    return True
