"""The file of a SQLite database before it is opened: sound, or one line that says what to do.

    missing, empty    new; refused beside files of models or beside a log of its own (-wal)
    no regular file   folders, pipes, devices; for its log also links: refused
    damaged           SQLite finds it in ``CHECK_SECONDS``, or in part of the file

Nothing is changed but modes. SQLite itself would remove the log of an empty file, write a log that
does not belong to the file into it, and make a new database where one was lost.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import stat
from contextlib import closing
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

_BESIDE = ("-wal", "-shm", "-journal")
_STEPS = 20_000  # of SQLite's machine, between two looks at the clock
_RESTORE = "put it back from a backup, with its -wal if there is one"
BEGIN = "to begin anew, move the folder away; nothing was removed"
"""What to do where a store's database does not know its files."""


def prepare_file(path: Path, files: Path | None) -> None:
    """Check the file of a database, and keep other users from it; a new one is made empty.

    Args:
        path: of the database. Is not opened but by SQLite: closing it would free SQLite's locks.
        files: folder of a store with files of models, which a new database would know nothing
            of; None: there are none.

    Raises:
        StartupError: what is wrong with it; it is as it was.
    """
    try:
        _prepare(path, Path(os.path.realpath(path)), files)
    except OSError as error:
        raise StartupError(
            f"the store's database {path} cannot be used ({error.strerror}); "
            "let this user read and write it and its folder"
        ) from error


def _prepare(path: Path, real: Path, files: Path | None) -> None:
    log_bytes = max(_beside_bytes(path), _beside_bytes(real))
    found = _mode_and_size(real)
    if found is None or not found[1]:
        what = "missing" if found is None else "empty"
        if log_bytes:
            _refuse(path, f"is {what}, and its log {path.name}-wal is not", _RESTORE)
        if files is not None:
            _refuse(path, f"is {what}, and {files} holds files of models", f"{_RESTORE}; {BEGIN}")
    elif real != path.absolute() and _beside_bytes(path):
        _refuse(
            path, f"is a link, and {path.name}-wal lies beside the link", "move that there, too"
        )
    if found is None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        Descriptor(os.open(real, flags, OWN_MODE)).close()
    elif not os.access(real, os.R_OK | os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(real))
    for file in (real, *(real.with_name(real.name + end) for end in _BESIDE)):
        _keep_private(file)
    if found is not None and found[1]:
        _check(path, real)


def _refuse(path: Path, what: str, remedy: str) -> NoReturn:
    raise StartupError(f"the store's database {path} {what}; {remedy}")


def _mode_and_size(file: Path) -> tuple[int, int] | None:
    """Mode and size of a regular file; None: there is none.

    Raises:
        StartupError: it is something else.
    """
    try:
        found = file.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        _refuse(file, "is no regular file", "put a file there, from a backup")
    return found.st_mode, found.st_size


def _beside_bytes(path: Path) -> int:
    """Bytes of a database's log; what lies beside it has to be a file in any case."""
    sizes = [_mode_and_size(path.with_name(path.name + end)) or (0, 0) for end in _BESIDE]
    return sizes[0][1]


def _keep_private(file: Path) -> None:
    """Take a file's rights from group and others, unless it is another user's."""
    found = _mode_and_size(file)
    if found is not None and found[0] & 0o077 and os.geteuid() in (0, file.lstat().st_uid):
        file.chmod(OWN_MODE)


def _check(path: Path, real: Path) -> None:
    """Let SQLite look for damage, for a bounded time."""
    # With a rollback journal there are changes to take back first, which takes a writer.
    mode = "rw" if real.with_name(f"{real.name}-journal").exists() else "ro"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(real))}?mode={mode}", uri=True)) as database:
            for check, seconds in CHECKS:
                said = _said(database, check, seconds)
                if said != "ok":
                    raise sqlite3.DatabaseError(said)
    except sqlite3.DatabaseError as error:
        said = " ".join(str(error).split())
        _refuse(path, f"is damaged ({said[:200]})", f"{_RESTORE}; nothing was removed")


def _said(database: sqlite3.Connection, check: str, seconds: float) -> str:
    """Result of a check: "ok", also if its time was over, or the first damage."""
    ends = monotonic() + seconds
    database.set_progress_handler(lambda: monotonic() > ends, _STEPS)
    try:
        return str(database.execute(f"PRAGMA {check}(1)").fetchone()[0])
    except sqlite3.OperationalError:
        if monotonic() <= ends:
            raise
        log.info("a part of the database was checked", extra={"check": check, "seconds": seconds})
        return "ok"
