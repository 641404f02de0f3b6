"""What may lie where a file should: what never ends, what is none, and what is damaged.

Each kind is made at a path at which nothing lies, or in the place of the file that lies there.
"""

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

PIECE = 1 << 20
SPARSE_BYTES = 1 << 40

Make = Callable[[Path], object]


def bound(path: Path) -> None:
    """A socket; its path may have 107 bytes at most, so it is bound from its folder."""
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(before)


def sparse(path: Path) -> None:
    """A file of a terabyte, which takes no disk."""
    path.touch()
    os.truncate(path, SPARSE_BYTES)


NO_FILES: Mapping[str, tuple[Make, str]] = {
    "a pipe": (os.mkfifo, "it is a pipe, not a file"),
    "a socket": (bound, "it is a socket, not a file"),
    "a device without end": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "a folder": (Path.mkdir, "it is a folder, not a file"),
    "nothing": (lambda path: None, "No such file"),
    "a link to nowhere": (lambda path: path.symlink_to("gone"), "No such file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels"),
}
"""Maker, and words of the refusal."""

WRONG_FILES: Mapping[str, Make] = {
    "an empty file": Path.touch,
    "a terabyte": sparse,
    "noise": lambda path: path.write_bytes(os.urandom(5000)),
}

STRANGE: Mapping[str, Make] = {
    **{name: make for name, (make, _) in NO_FILES.items()},
    **WRONG_FILES,
}


def put(make: Make, path: Path) -> None:
    """Put one kind in the place of what lies at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make(path)
