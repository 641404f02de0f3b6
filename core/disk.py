"""What survives a power cut, and a full, read-only or failing disk, whichever library reports it.

Messages are looked at last: safetensors and ONNX Runtime pass on the system's words only.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from braid.core.errors import DiskFailure, DiskTrouble

_BY_ERRNO = {
    errno.ENOSPC: DiskTrouble.FULL,
    errno.EDQUOT: DiskTrouble.QUOTA,
    errno.EROFS: DiskTrouble.READ_ONLY,
    errno.EIO: DiskTrouble.FAILING,
}

_BY_SQLITE_NAME = {
    "SQLITE_FULL": DiskTrouble.FULL,
    "SQLITE_READONLY": DiskTrouble.READ_ONLY,
    "SQLITE_IOERR": DiskTrouble.FAILING,
    "SQLITE_CANTOPEN": DiskTrouble.FAILING,
    "SQLITE_CORRUPT": DiskTrouble.FAILING,
    "SQLITE_NOTADB": DiskTrouble.FAILING,
}

LEAST_FREE_BYTES = 64 << 10
"""With less than this left, a failed write is the fault of a full disk, whatever it says."""


def sync(path: Path) -> None:
    """Make a file's content, or a folder's new and renamed entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_failure(error: BaseException, where: Path, *, by_text: bool = False) -> DiskFailure | None:
    """Return the failure of the disk of ``where`` if ``error`` or one of its causes came of it.

    ``by_text``: look for the system's words in the messages, too.
    """
    for cause in _chain(error):
        trouble = _trouble(cause) or (_trouble_in_text(str(cause)) if by_text else None)
        if trouble is DiskTrouble.FAILING and _is_full(where):
            trouble = DiskTrouble.FULL
        if trouble is not None:
            return DiskFailure(trouble, str(where))
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error, the error that a database library wraps in it, and its causes."""
    visited: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop(0)
        if cause is not None and id(cause) not in visited:
            visited.add(id(cause))
            yield cause
            waiting += [getattr(cause, "orig", None), cause.__cause__, cause.__context__]


def _trouble(error: BaseException) -> DiskTrouble | None:
    if isinstance(error, DiskFailure):
        return error.trouble
    if isinstance(error, OSError) and error.errno is not None:
        return _BY_ERRNO.get(error.errno)
    name = str(getattr(error, "sqlite_errorname", ""))
    troubles = (trouble for start, trouble in _BY_SQLITE_NAME.items() if name.startswith(start))
    return next(troubles, None)


def _trouble_in_text(text: str) -> DiskTrouble | None:
    """Kind of trouble named in a text by the system's words or by an error number of Rust."""
    for number, trouble in _BY_ERRNO.items():
        if os.strerror(number) in text or f"(os error {number})" in text:
            return trouble
    return None


def _is_full(where: Path) -> bool:
    try:
        free = os.statvfs(where)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < LEAST_FREE_BYTES
