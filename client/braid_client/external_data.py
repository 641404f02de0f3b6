"""An ONNX model in several files, sent as one: a zip of the model and the files it names.

    model.onnx ──names──> model.onnx.data, ...   beside it, as torch.onnx.export writes them
        └──────── zip, stored ────────┘          what a registration takes

The zip depends on names and contents only, so equal files have equal digests. Nothing but fields of
the model is read to find the names: its tensors are passed over.
"""

import hashlib
import os
import posixpath
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, BinaryIO, Self

PIECE_BYTES = 1 << 20

_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@=,~ -]{0,190}\.onnx")

_PARTS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""Messages of onnx.proto that lead to tensors: number of a field -> message in it."""

_KEY, _VALUE = 1, 2  # fields of an entry of TensorProto.external_data
_MOST_BYTES = 1 << 31  # of a message of protobuf
_MOST_ENTRY_BYTES = 1 << 16
_MOST_DEPTH = 64


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file, and the files of its external data; none: it is sent as it is."""

    model: Path
    data: tuple[Path, ...] = ()

    def chunks(self) -> Iterator[bytes]:
        """Read what is registered, at most ``PIECE_BYTES`` at a time.

        Raises:
            OSError: a file cannot be read.
        """
        return self._zipped() if self.data else _read(self.model)

    def size_bytes(self) -> int:
        """Return the bytes of all files together.

        Raises:
            OSError: a file cannot be found.
        """
        return sum(path.stat().st_size for path in (self.model, *self.data))

    def digest(self) -> str:
        """Return the SHA-256 of what is registered, hex.

        Raises:
            OSError: a file cannot be read.
        """
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def _zipped(self) -> Iterator[bytes]:
        names = [(path, path.relative_to(self.model.parent).as_posix()) for path in self.data]
        names.insert(0, (self.model, name_of_model(self.model.name, [each for _, each in names])))
        with ZipOfFiles() as files:
            for path, inside in names:
                files.begin(inside)
                for chunk in _read(path):
                    yield files.write(chunk)
            yield files.end()


class ZipOfFiles:
    """Zip whose files are stored as they are, written piece by piece; closed at the end."""

    def __init__(self) -> None:
        self._pieces = _Pieces()
        self._archive = zipfile.ZipFile(self._pieces, "w", zipfile.ZIP_STORED)
        self._member: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, name: str) -> None:
        """Begin the next file; the one before is at its end."""
        self._end_member()
        member = zipfile.ZipInfo(name)  # of 1980: no time of these files
        self._member = self._archive.open(member, "w", force_zip64=True)

    def write(self, chunk: bytes) -> bytes:
        """Add a chunk to the file; returns the bytes of the zip that follow from it."""
        assert self._member is not None, "no file was begun"
        self._member.write(chunk)
        return self._pieces.take()

    def end(self) -> bytes:
        """Return the last bytes of the zip."""
        self._end_member()
        self._archive.close()
        return self._pieces.take()

    def _end_member(self) -> None:
        if self._member is not None:
            self._member.close()


def name_of_model(name: str, data: Iterable[str]) -> str:
    """Return the name of a model file in its zip, beside files or folders of data."""
    taken = {each.partition("/")[0] for each in data}
    found = name if _MODEL_NAME.fullmatch(name) else "model.onnx"
    while found in taken:
        found = f"_{found}"
    return found


def with_its_data(model: Path, *, links: bool = False) -> ModelFile:
    """Return a model file with the files that it names, which lie in its folder or below.

    Args:
        model: a regular file, of any format.
        links: whether a file may be a symbolic link. Not where the model comes from others: it
            could name what leads to any file of this machine.

    Raises:
        ValueError: a file is missing, lies elsewhere or is no regular file; says which, and what
            to do.
        OSError: the model cannot be read.
    """
    named = {name_inside(place): place for place in places_of_data(model)}
    named.pop(model.name, None)
    return ModelFile(model, tuple(_beside(model, *each, links) for each in sorted(named.items())))


def places_of_data(model: Path) -> frozenset[str]:
    """Return the locations of external data, as a model file states them.

    Raises:
        OSError: the file cannot be read.
    """
    with _opened(model) as file:
        size = min(os.fstat(file.fileno()).st_size, _MOST_BYTES)
        return frozenset(_locations(file, "model", 0, size, 0))


def name_inside(place: str) -> str:
    """Return a location as a name in the model's folder, without detours; "" if it leads out."""
    name = posixpath.normpath(place)
    leads_out = name in (".", "..") or name.startswith(("/", "../")) or "\\" in name
    return "" if leads_out or PurePath(place).anchor else name


def _beside(model: Path, inside: str, name: str, links: bool) -> Path:
    if not inside:
        raise ValueError(
            f"{model} keeps weights in {name!r}, outside its folder; save it again with its data "
            "beside it: onnx.save_model(onnx.load(FILE), FILE, save_as_external_data=True, "
            "location='NAME.data')"
        )
    path = model.parent
    for part in inside.split("/"):
        path /= part
        if path.is_symlink() and not links:
            raise ValueError(
                f"{model} keeps weights in {name!r}, which is a symbolic link or lies behind one; "
                "put the file itself there"
            )
    if not path.exists():
        raise ValueError(
            f"{model} keeps weights in {name!r}, which is missing in {model.parent}; put it beside "
            "the model"
        )
    if not path.is_file():
        raise ValueError(f"{model} keeps weights in {name!r}, which is no regular file")
    return path


def _locations(file: BinaryIO, kind: str, at: int, end: int, depth: int) -> Iterator[str]:
    """Yield the places of external data that a message names, from ``at`` to ``end``.

    What is malformed is passed over: the server says what is wrong with it.
    """
    parts = _PARTS[kind]
    for number, first, last in _fields(file, at, end):
        part = parts.get(number)
        if part == "entry":
            yield from _place(file, first, last)
        elif part is not None and depth < _MOST_DEPTH:
            yield from _locations(file, part, first, last, depth + 1)


def _place(file: BinaryIO, at: int, end: int) -> Iterator[str]:
    """Yield the value of an entry, if its key is "location"."""
    if end - at > _MOST_ENTRY_BYTES:
        return
    texts = {}
    for number, first, last in _fields(file, at, end):
        file.seek(first)
        texts[number] = file.read(last - first)
    if texts.get(_KEY) == b"location" and (value := texts.get(_VALUE)):
        yield value.decode(errors="replace")


def _fields(file: BinaryIO, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, first and last position of the fields of a message that have a length."""
    while at < end:
        file.seek(at)
        head = file.read(20)
        tag, used = _varint(head, 0)
        kind, value = tag & 7, 0
        if kind in (0, 2):
            value, used = _varint(head, used)
        at += used + {1: 8, 5: 4}.get(kind, 0)
        if not used or not tag >> 3 or kind in (3, 4, 6, 7):
            return
        if kind == 2:
            if at + value > end:
                return
            yield tag >> 3, at, at + value
            at += value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it; 0 for both if it is cut off."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    return 0, 0


def _opened(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def _read(path: Path) -> Iterator[bytes]:
    with _opened(path) as file:
        left = os.fstat(file.fileno()).st_size  # of a file that grows no more is read
        while left and (chunk := file.read(min(left, PIECE_BYTES))):
            left -= len(chunk)
            yield chunk


class _Pieces:
    """File that a zip is written to, taken away piece by piece."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._waiting.append(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def take(self) -> bytes:
        taken, self._waiting = b"".join(self._waiting), []
        return taken
