"""Artefact folders as one file each: a tar that says nothing but names, sizes and contents.

    folder ──pack──> tar ──> an object ──> tar ──unpack──> folder

Equal folders make equal tars: names in order, no times, no owners. A tar from elsewhere is not
trusted with more than flat names and plain files.
"""

import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import IO

from braid.core.errors import InvalidArtefact
from braid.core.regular_file import open_file

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_MOST_FILES = 100
_CHUNK_BYTES = 1 << 20


def pack(folder: Path, target: Path) -> None:
    """Write the files of a folder to a new file.

    Raises InvalidArtefact: the folder holds something other than files with plain names. OSError:
    of the disk.
    """
    with new_file(target) as file, tarfile.open(None, "w", file, format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folder.iterdir()):
            _check_name(path.name)
            if path.is_symlink() or not path.is_file():
                raise InvalidArtefact(f"the artefact holds {path.name!r}, which is no file")
            _add(tar, path)


def unpack(source: Path, folder: Path) -> None:
    """Write the files of a tar into a new folder; a part of them may be there after an error.

    Raises InvalidArtefact: it is no tar, or holds something other than files with plain names.
    OSError: of the disk.
    """
    folder.mkdir(mode=0o700)
    try:
        with tarfile.open(source, mode="r:", format=tarfile.GNU_FORMAT) as tar:
            for count, member in enumerate(tar):
                _check_name(member.name)
                content = tar.extractfile(member) if member.type == tarfile.REGTYPE else None
                if content is None or count >= _MOST_FILES:
                    raise InvalidArtefact(f"the artefact holds {member.name!r}, which is no file")
                with new_file(folder / member.name) as file:
                    shutil.copyfileobj(content, file, _CHUNK_BYTES)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidArtefact(f"the artefact is no tar: {error}") from error
    except FileExistsError as error:
        raise InvalidArtefact("the artefact holds a file twice") from error


def _add(tar: tarfile.TarFile, path: Path) -> None:
    with open_file(path) as file:
        member = tarfile.TarInfo(path.name)
        member.size = os.fstat(file.fileno()).st_size
        member.mode = 0o600
        tar.addfile(member, file)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArtefact(f"the artefact holds {name[:100]!r}, which is no plain name")


def new_file(path: Path) -> IO[bytes]:
    """Open a new file, readable by its owner only."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
