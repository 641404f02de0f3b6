"""Request stream of RegisterModel: a header, chunks from disk, a footer with their SHA-256.

file ──1 MiB at a time──> hash ──> chunk ──> gRPC        never more than one chunk in memory
"""

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from braid_client.errors import InvalidArgument
from braid_client.external_data import ModelFile, with_its_data
from braid_client.model_files import HEAD_BYTES, why_no_model
from braid_client.tensors import Array
from braid_client.wire import admin_pb2 as wire

CHUNK_BYTES = 1 << 20

Samples = str | os.PathLike[str] | bytes | Mapping[str, Array]
"""Path of an .npz file, its bytes, or arrays by the names of the model's inputs."""

ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview
"""Path of a model file, or its bytes."""


OnUpload = Callable[[int, int], None]
"""Called with the bytes sent and the bytes in all."""


@contextmanager
def open_model(model: ModelSource) -> Iterator[tuple[Iterator[bytes], int]]:
    """Open a model file; return its content in chunks, and its size in bytes.

    An ONNX model whose weights lie in other files comes as a zip of all of them.

    Raises:
        OSError: there is no such file, or it cannot be read.
        InvalidArgument: it cannot be a model.
    """
    if isinstance(model, bytes | bytearray | memoryview):
        yield chunks_of(io.BytesIO(model)), memoryview(model).nbytes
        return
    path = os.fsdecode(model)
    is_regular = _is_regular(path, "a folder; name the .onnx or .pt2 file in it")
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.peek(HEAD_BYTES)
        if reason := why_no_model(head, whole=is_regular and len(head) == size):
            raise InvalidArgument(f"{path}: {reason}")
        files = _with_its_data(path) if is_regular else None
        if files is None or not files.data:
            yield chunks_of(stream), size
            return
    yield files.chunks(), files.size_bytes()


def _with_its_data(path: str) -> ModelFile:
    try:
        return with_its_data(Path(path))
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def chunks_of(stream: BinaryIO) -> Iterator[bytes]:
    return iter(partial(stream.read, CHUNK_BYTES), b"")


def _is_regular(path: str, folder: str) -> bool:
    """Return whether a path is that of a regular file; else it is a pipe, which a program fills.

    Raises:
        InvalidArgument: it is neither; ``folder`` is what is said of a folder.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise InvalidArgument(f"{path} is {folder}")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InvalidArgument(f"{path} is a device or a socket, not a file")
    return stat.S_ISREG(mode)


def sample_bytes(samples: Samples | None) -> bytes:
    """Return an .npz file of samples; empty for None.

    Raises:
        OSError: there is no such file, or it cannot be read.
        InvalidArgument: an array cannot be sent, or the file is empty.
    """
    if samples is None:
        return b""
    if isinstance(samples, Mapping):
        return _packed(samples)
    if not isinstance(samples, bytes):
        path = os.fsdecode(samples)
        _is_regular(path, "a folder; name the .npz file in it")
        with open(path, "rb") as file:
            samples = file.read()
    if not samples:
        raise InvalidArgument("the file of samples is empty")
    return samples


def _packed(samples: Mapping[str, Array]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in samples.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                try:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
                except ValueError as error:
                    raise InvalidArgument(f"samples[{name!r}]: {error}; give numbers") from error
    return packed.getvalue()


def upload_parts(
    header: wire.RegisterModelHeader,
    chunks: Iterator[bytes],
    size_bytes: int,
    on_upload: OnUpload | None = None,
    samples: bytes = b"",
) -> Iterator[wire.RegisterModelRequest]:
    """Yield the messages of an upload, ``samples`` being an .npz file.

    ``on_upload`` hears of a chunk when gRPC asks for the next one, that is, once it is on its way.
    """
    digest = hashlib.sha256()
    sent = 0
    yield wire.RegisterModelRequest(header=header)
    for first in range(0, len(samples), CHUNK_BYTES):
        yield wire.RegisterModelRequest(samples=samples[first : first + CHUNK_BYTES])
    for chunk in chunks:
        digest.update(chunk)
        yield wire.RegisterModelRequest(chunk=chunk)
        sent += len(chunk)
        if on_upload is not None:
            on_upload(min(sent, size_bytes), size_bytes)
    footer = wire.RegisterModelFooter(sha256=digest.hexdigest())
    yield wire.RegisterModelRequest(footer=footer)
