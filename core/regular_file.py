"""Files that operators name, opened only if they are files: others may never end, or never open.

A device is not even opened: that alone does something to many. What is read whole has a limit, as a
sparse file of terabytes takes no disk.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


_MORE_BYTES = 1 << 20


class NoRegularFile(OSError):
    """There is something else at the path; ``strerror`` says what."""

    def __init__(self, path: Path, mode: int) -> None:
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
        super().__init__(errno.EINVAL, f"it is {kind}, not a file", str(path))


def check_file(path: Path) -> None:
    """Raise NoRegularFile if there is something else at a path, OSError if nothing is."""
    _check(path, path.stat())


def open_file(path: Path) -> BufferedReader:
    """Open a file to read its bytes. Raises NoRegularFile, or another OSError."""
    check_file(path)
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  (the caller closes it)
    try:
        _check(path, os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def read_file(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file. Raises OSError, also if it is larger than ``most_bytes``."""
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        content = file.read(min(size_bytes, most_bytes) + 1)  # it allocates as much as it is told
        while len(content) <= most_bytes and (more := file.read(_MORE_BYTES)):
            content += more  # the file grew, or says 0 as those of /proc do
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NoRegularFile(path, status.st_mode)
