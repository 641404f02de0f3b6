"""The file of a SQLite database before it is opened: sound, or one line that says what to do.

    missing, empty    new; refused beside files of models or beside a log of its own (-wal)
    no regular file   folders, pipes, devices; for its log also links: refused
    damaged           SQLite finds it in ``CHECKS``, or in part of the file
    another one       of another program, or of a store with other files: refused

Nothing is changed but modes: SQLite only reads. As a writer it would remove the log of an empty
file, write a log that is not this file's into it, and make a new database where one was lost.
"""

import errno
import logging
import os
import sqlite3
import stat
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import NoReturn
from urllib.parse import quote

from braid.core.descriptors import Descriptor
from braid.core.errors import StartupError

log = logging.getLogger("braid.store")

CHECKS = (("quick_check", 10.0), ("integrity_check", 1.0))
"""SQLite's checks, and after how many seconds each ends: pages first, then what indexes say."""

OWN_MODE = 0o600

_LOG, _BESIDE = "-wal", ("-wal", "-shm", "-journal")
_STEPS = 20_000  # of SQLite's machine, between two looks at the clock
_DAMAGE = ("SQLITE_ERROR", "SQLITE_CORRUPT", "SQLITE_NOTADB")
_RESTORE = "put it back from a backup, with its -wal if there is one"
BEGIN = "to begin anew, move the folder away; nothing was removed"
"""What to do where a store's database does not know its files."""


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Files of models in a store's folder, which its database should know."""

    folder: Path
    digests: Collection[str] = ()

    def why_strange(self, digests: Collection[str]) -> str:
        """Say what is wrong with a database that knows these files; "": it may be the right one."""
        if not self.digests or not set(digests).isdisjoint(self.digests):
            return ""
        return (
            f"knows none of the files of models in {self.folder}: it is new, older or another "
            f"one; put the right one there, or, {BEGIN}"
        )


def prepare_file(path: Path, files: StoredFiles) -> None:
    """Check the file of a database, and keep other users from it; a new one is made empty.

    ``path``: of the database. Is not opened but by SQLite: closing it would free SQLite's locks.
    Raises StartupError: what is wrong with it; it is as it was.
    """
    try:
        _File(path, Path(os.path.realpath(path))).prepare(files)
    except OSError as error:
        raise _unusable(path, str(error.strerror)) from error


def _unusable(path: Path, why: str) -> StartupError:
    return StartupError(
        f"the store's database {path} cannot be used ({why}); let this user read and write it and "
        "its folder"
    )


@dataclass(frozen=True, slots=True)
class _File:
    given: Path
    path: Path  # without links

    def prepare(self, files: StoredFiles) -> None:
        own_log = self._size_of(_beside(self.given, _LOG))
        has_log = bool(own_log or self._size_of(_beside(self.path, _LOG)))
        size_bytes = self._size_of(self.path)
        if not size_bytes:
            what = "missing" if size_bytes is None else "empty"
            if has_log:
                self._refuse(f"is {what}, and {self.given.name}{_LOG} is there; {_RESTORE}")
            if files.digests:
                holds = f"{files.folder} holds files of models"
                self._refuse(f"is {what}, and {holds}; {_RESTORE}; or, {BEGIN}")
        elif own_log and self.path.parent != Path(os.path.realpath(self.given.parent)):
            self._refuse(f"is a link, and {self.given.name}{_LOG} is not beside what it names")
        if size_bytes is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            Descriptor(os.open(self.path, flags, OWN_MODE)).close()
        for file in (self.path, *(_beside(self.path, ending) for ending in _BESIDE)):
            if self._size_of(file) is not None:
                _keep_private(file)
        if size_bytes:
            self._look_inside(files)

    def _size_of(self, file: Path) -> int | None:
        """Bytes of a regular file; None: there is none."""
        try:
            status = file.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            remedy = "remove it" if file.name.endswith("-shm") else _RESTORE
            self._refuse(f"cannot be used: {file} is no regular file; {remedy}")
        return status.st_size

    def _refuse(self, why: str) -> NoReturn:
        raise StartupError(f"the store's database {self.given} {why}")

    def _look_inside(self, files: StoredFiles) -> None:
        # With a rollback journal there are changes to take back first, which takes a writer.
        mode = "rw" if _beside(self.path, "-journal").exists() else "ro"
        name = f"file:{quote(str(self.path))}?mode={mode}"
        try:
            with closing(sqlite3.connect(name, uri=True)) as database:
                for check, seconds in CHECKS:
                    _check(database, check, seconds)
                if why := _why_another(database, files):
                    self._refuse(why)
        except sqlite3.Error as error:
            reason = " ".join(str(error).split())[:200]
            if not getattr(error, "sqlite_errorname", _DAMAGE[0]).startswith(_DAMAGE):
                raise _unusable(self.given, reason) from error
            why = f"is damaged ({reason}); {_RESTORE}; nothing was removed"
            raise StartupError(f"the store's database {self.given} {why}") from error


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _keep_private(file: Path) -> None:
    """Take a file's rights from group and others. PermissionError: this user has none."""
    if not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    status = file.lstat()
    if status.st_mode & 0o077 and os.geteuid() in (0, status.st_uid):
        file.chmod(OWN_MODE)


def _check(database: sqlite3.Connection, check: str, seconds: float) -> None:
    """Make a check for some seconds at most; raises the sqlite3.Error that it ends with."""
    ends = monotonic() + seconds
    database.set_progress_handler(lambda: monotonic() > ends, _STEPS)
    try:
        answer = str(database.execute(f"PRAGMA {check}(1)").fetchone()[0])
    except sqlite3.OperationalError:
        if monotonic() <= ends:
            raise
        log.info("a part of the database was checked", extra={"check": check, "seconds": seconds})
    else:
        if answer != "ok":
            raise sqlite3.DatabaseError(answer)
    finally:
        database.set_progress_handler(None, 0)


def _why_another(database: sqlite3.Connection, files: StoredFiles) -> str:
    """Say why a sound database is not this store's; "": it may be."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
    if not tables:
        return files.why_strange(())
    if "meta" not in tables:
        names = ", ".join(sorted(tables)[:5])
        return f"has no meta, but {names}: it is damaged or another program's; {_RESTORE}"
    query = "SELECT sha256 FROM models"
    if "digests" in tables:
        query += " UNION SELECT sha256 FROM digests"
    return files.why_strange([sha256 for (sha256,) in database.execute(query)])
