"""The bytes of one version in a model repository: its file, zipped with its external data if any.

    VERSION/model.onnx                            the file as it is
    VERSION/model.onnx, VERSION/weights.bin       a zip of both, which registrations take
    VERSION/model.onnx/model.onnx, ...            the same, where the model is a folder

The zip depends on names and contents only, so equal files have equal digests.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from braid.core.errors import InvalidRequest
from braid.core.regular_file import open_file
from braid.server.repository.folders import VersionFolder

CHUNK_BYTES = 4 << 20

_NO_DATA = (".txt", ".md", ".json", ".pbtxt")  # what people leave beside models


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Model file of one version, and the files of its external data."""

    model: Path
    data: tuple[Path, ...] = ()

    def chunks(self) -> Iterator[bytes]:
        """Read what is registered, some MiB at a time; blocks while the disk is read.

        Raises:
            OSError: a file cannot be read.
        """
        return _zipped((self.model, *self.data)) if self.data else _read(self.model)

    def size_bytes(self) -> int:
        """Bytes of all files together; blocks while the disk is asked.

        Raises:
            OSError: a file cannot be found.
        """
        return sum(path.stat().st_size for path in (self.model, *self.data))

    def digest(self) -> str:
        """Return the SHA-256 of what is registered, hex; blocks while the files are read.

        Raises:
            OSError: a file cannot be read.
        """
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()


def model_file(version: VersionFolder, filename: str) -> ModelFile:
    """Return the model file of a version's folder.

    Raises:
        InvalidRequest: there is none, or it is no regular file.
        OSError: the folder cannot be read.
    """
    model = version.path / filename
    if model.is_dir():  # a model that is a folder
        model /= filename
    for path in (version.path, model):
        if path.is_symlink() and not path.exists():
            raise InvalidRequest(f"{path.name} is a link that leads nowhere")
    if not model.exists():
        raise InvalidRequest(
            f"there is no {filename} in there; default_model_filename of config.pbtxt names another"
        )
    if not model.is_file():
        raise InvalidRequest(f"{filename} is no regular file")
    return ModelFile(model, tuple(_data_beside(model)))


def _data_beside(model: Path) -> Iterator[Path]:
    for path in sorted(model.parent.iterdir()):
        is_data = not path.name.startswith(".") and not path.name.endswith(_NO_DATA)
        if is_data and path != model and path.is_file():
            yield path


def _read(path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        left = os.fstat(file.fileno()).st_size  # of a file that grows no more is read
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
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


def _zipped(files: tuple[Path, ...]) -> Iterator[bytes]:
    pieces = _Pieces()
    with zipfile.ZipFile(pieces, "w", zipfile.ZIP_STORED) as archive:
        for path in files:
            member = zipfile.ZipInfo(path.name)  # of 1980: no time of these files
            with archive.open(member, "w", force_zip64=True) as target:
                for chunk in _read(path):
                    target.write(chunk)
                    yield pieces.take()
    yield pieces.take()
