"""Untrusted zip archives: number and sizes of files are bounded before any is unpacked.

Both ``.pt2`` files and ONNX models with external data come as zips. Members are read by name and
never extracted by the zip library; links, folders above the archive and repeated names are refused.
"""

import errno
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from braid.core.errors import ModelImportError
from braid.core.external_data import name_inside, places_of_data
from braid.core.regular_file import open_file

MAX_MEMBERS = 100_000
MAX_UNPACKED_BYTES = 16 << 30
MAX_FOLDERS = 1000
MAX_DEPTH = 32  # of folders
MAX_RATIO = 100  # weights hardly shrink
_FREE_BYTES = 64 << 20  # may be packed as tightly as one likes
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")  # control characters, a separator elsewhere
_UTF8 = 0x800  # flag of a member
_NO_PLACE = (errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def is_zip(path: Path) -> bool:
    """By its first bytes; ``NoRegularFile`` or ``OSError`` if there is nothing to read."""
    with open_file(path) as file:
        return file.read(4) == b"PK\x03\x04"


class Archive:
    """Zip archive whose members passed the checks."""

    def __init__(self, path: Path) -> None:
        """Check members and budgets, too; raises ``ModelImportError``."""
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise ModelImportError(f"the zip archive is damaged: {error}") from error
        members = self._zip.infolist()
        _check_sizes(members, path.stat().st_size)
        names = [(_checked_name(member), member) for member in members]
        self._members = {name: member for name, member in names if not member.is_dir()}
        if len(self._members) != sum(not m.is_dir() for m in members):
            raise ModelImportError("the archive holds two files of the same name")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._members)

    def size(self, name: str) -> int:
        """Size of a file in bytes, unpacked; ``ModelImportError`` if there is none."""
        if name not in self._members:
            raise ModelImportError(f"the archive has no file {name!r}")
        return self._members[name].file_size

    def read(self, name: str, most: int = MAX_UNPACKED_BYTES) -> bytearray:
        """Content, checked; ``ModelImportError`` if absent, over ``most``, or damaged."""
        if self.size(name) > most:
            raise ModelImportError(f"{name} has {self.size(name)} bytes, at most {most} are read")
        data = bytearray()
        for chunk in self.chunks(name):
            data += chunk
        return data

    def chunks(self, name: str) -> Iterator[bytes]:
        """Content, 4 MiB at a time; ``ModelImportError`` if the file is absent or damaged."""
        left = self.size(name)
        try:
            with self._zip.open(self._members[name]) as file:
                while chunk := file.read(1 << 22):
                    left -= len(chunk)
                    if left < 0:
                        break
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise ModelImportError(f"{name} in the archive is damaged: {error}") from error
        if left:
            raise ModelImportError(f"{name} in the archive does not have the size it states")

    def unpack(self, folder: Path) -> Path:
        """Write a model and its data as fresh regular files into an empty folder.

        Returns the only .onnx file in no folder that no other names as its data. Raises
        ``ModelImportError`` if there is none, a folder where a file is, or damage.
        """
        models = [name for name in self.names if name.endswith(".onnx")]
        tops = [name for name in models if "/" not in name]
        if models and not tops:
            raise ModelImportError(
                f"the archive holds {models[0]!r}; zip the model and its data files without "
                "folders around them"
            )
        try:
            _make_folders(folder, self.names if tops else ())
            for name in self.names if tops else ():
                with (folder / name).open("xb") as file:
                    file.writelines(self.chunks(name))
            named = {top: places_of_data(folder / top) for top in tops}
            if len(tops) > 1:
                tops = [top for top in tops if {*tops} - {top} <= {*map(name_inside, named[top])}]
            places = filter(name_inside, named[tops[0]] if tops else ())
            _make_folders(folder, places)  # as of a/../weights
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            name = os.path.relpath(str(error.filename), folder)
            raise ModelImportError(
                f"the archive holds {name!r} as a file and as a folder, or the name is too long"
            ) from None
        if len(tops) != 1:
            raise ModelImportError(
                f"a zip archive with {len(models)} .onnx files; it must hold exactly one, and the "
                "files it names as external data (a torch checkpoint cannot be imported)"
            )
        return folder / tops[0]


def _make_folders(folder: Path, names: Iterable[str]) -> None:
    made: set[PurePosixPath] = set()
    for name in names:
        if name.count("/") <= MAX_DEPTH:
            made.update(PurePosixPath(name).parents)
        if name.count("/") > MAX_DEPTH or len(made) > MAX_FOLDERS:
            raise ModelImportError(
                f"the archive's files, or the places its model names, lie in more than "
                f"{MAX_FOLDERS} folders, or more than {MAX_DEPTH} deep; put the data beside the "
                "model: onnx.save_model(..., save_as_external_data=True, location='NAME.data')"
            )
        (folder / name).parent.mkdir(parents=True, exist_ok=True)


def _check_sizes(members: list[zipfile.ZipInfo], packed: int) -> None:
    if len(members) > MAX_MEMBERS:
        raise ModelImportError(f"the archive has {len(members)} members, at most {MAX_MEMBERS}")
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED_BYTES:
        raise ModelImportError(
            f"the archive unpacks to {unpacked} bytes, more than {MAX_UNPACKED_BYTES}"
        )
    if unpacked > _FREE_BYTES and unpacked > MAX_RATIO * packed:
        raise ModelImportError(
            f"the archive unpacks to {unpacked // max(packed, 1)} times its size, more than "
            f"{MAX_RATIO} (a zip bomb?); store its files uncompressed"
        )


def _checked_name(member: zipfile.ZipInfo) -> str:
    """Return a member's name without detours; UTF-8, if it can be, where no encoding is stated."""
    name = member.filename
    if not member.flag_bits & _UTF8:
        with suppress(UnicodeError):
            name = name.encode("cp437").decode()
    path = PurePosixPath(name)
    if _UNSAFE.search(name) or path.is_absolute() or ".." in path.parts:
        raise ModelImportError(f"the archive holds {name!r}, a path that leaves it")
    mode = stat.S_IFMT(member.external_attr >> 16)
    if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ModelImportError(f"{name!r} in the archive is a link or a device, not a file")
    if member.flag_bits & 0x1:
        raise ModelImportError(f"{name!r} in the archive is encrypted")
    if member.compress_type not in _METHODS:
        raise ModelImportError(f"{name!r} in the archive is packed in an unusual way")
    return path.as_posix()
