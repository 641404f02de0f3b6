"""The folder that compilations keep what they made in, usually ``~/.cache/braid``.

schedules/, measurements/    braid.compiler.result_files; a server on the folder uses them, too
compiled/DIGEST/             artefacts of the models that were compiled last
compiling                    lock of the process that compiles
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from braid.compiler.result_files import ResultFiles
from braid.core.descriptors import Descriptor
from braid.core.disk import disk_failure
from braid.core.errors import InvalidArtefact, StartupError
from braid.core.removal import remove_entry
from braid.core.shortage import shortage
from braid.engine.importer.host.report import check_files, read_report

log = logging.getLogger("braid.library")

KEPT_ARTEFACTS = 32

WAIT_SECONDS = 0.1

_DIGEST = re.compile(r"[0-9a-f]{64}")

OLDEST = "0004"
"""Revision of a server's database from which on results are files."""

P = ParamSpec("P")
T = TypeVar("T")


class CacheFolder:
    """Schedules, measurements and artefacts. Used by one process at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._artefacts = root / "compiled"
        self.results = ResultFiles(root)

    @classmethod
    @asynccontextmanager
    async def open(cls, root: Path) -> AsyncIterator[CacheFolder]:
        """Wait until no other process or thread compiles into a folder; raises StartupError."""
        folder = cls(root)
        with ExitStack() as opened:
            try:
                os.makedirs(root, mode=0o700, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                lock = opened.enter_context(Descriptor(os.open(root / "compiling", flags, 0o600)))
                while not _is_free(lock):  # noqa: ASYNC110  # others are processes
                    await asyncio.sleep(WAIT_SECONDS)
                await folder.call(folder._prepare)
            except OSError as error:
                raise StartupError(f"{root} cannot be written: {error.strerror}") from error
            yield folder

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the files in another thread; raises DiskFailure or SystemShortage."""
        with self.disk_errors():
            return await asyncio.to_thread(function, *args, **kwargs)

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Raise errors of the disk as ``call`` does."""
        try:
            yield
        except OSError as error:
            if failure := disk_failure(error, self._root) or shortage(error):
                raise failure from error
            raise

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """Make a folder for the files of one compilation; a crash leaves it to the next one."""
        with (
            self.disk_errors(),
            tempfile.TemporaryDirectory(prefix=".work-", dir=self._artefacts) as folder,
        ):
            yield Path(folder)

    def artefact(self, digest: str) -> Path:
        """Path of the artefact of a file with this SHA-256."""
        return self._artefacts / digest

    def has_sound_artefact(self, digest: str, *, is_tried: bool = False) -> bool:
        """True if the artefact is complete; an incomplete one is removed.

        With ``is_tried`` also one of a model that ran on nothing that its import tried. Raises
        SystemShortage: it cannot be looked at for now.
        """
        artefact = self.artefact(digest)
        try:
            check_files(artefact, digest)
        except InvalidArtefact as error:
            if artefact.exists():
                log.warning("a damaged artefact is made again", extra={"reason": str(error)})
                remove_entry(artefact)
            return False
        if is_tried and not read_report(artefact).verified.batches:
            remove_entry(artefact)
            return False
        os.utime(artefact)  # used last
        return True

    def _prepare(self) -> None:
        """Remove leftovers and the oldest artefacts."""
        self._check_database()
        self._artefacts.mkdir(mode=0o700, exist_ok=True)
        by_age = sorted(self._artefacts.iterdir(), key=lambda entry: entry.lstat().st_mtime)
        artefacts = [entry for entry in by_age if _DIGEST.fullmatch(entry.name)]
        surplus = artefacts[: max(0, len(artefacts) - KEPT_ARTEFACTS)]
        for entry in by_age:
            if entry in surplus or entry not in artefacts:
                remove_entry(entry)

    def _check_database(self) -> None:
        """Refuse a folder whose results are rows of a database, as they were before ``OLDEST``."""
        database = self._root / "braid.db"
        if not database.exists():
            return
        try:
            with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as rows:
                ((revision,),) = rows.execute("SELECT version_num FROM alembic_version")
        except (sqlite3.Error, ValueError) as error:
            raise StartupError(f"{database} cannot be read ({error}); remove it") from error
        if revision < OLDEST:
            raise StartupError(
                f"{self._root} is of an unreleased version of Braid that is too old (revision "
                f"{revision}; the oldest that is read is {OLDEST}); choose another folder, or "
                "remove this one, and what it holds is measured again"
            )


def _is_free(lock: Descriptor) -> bool:
    """Take a lock, unless another process or thread has it."""
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
