"""Samples: inputs of a model that its owner gives, for trials of an import and errors of plans.

FILE.npz ──read_samples──> arrays by input ──check_fit──> the model's inputs, rows counted
                 └──digest_of──> the name under which the store keeps the file

Nothing in the file is run: pickles are refused, and a header may not promise more than there is.
"""

import errno
import hashlib
import io
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from braid.core.errors import InvalidRequest
from braid.core.regular_file import open_file
from braid.core.tensor import ARRAY_NAMES, BATCH, TensorType

Arrays = Mapping[str, NDArray[Any]]
NO_ARRAYS: Arrays = MappingProxyType({})

_DAMAGED = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError),
    *(NotImplementedError, RuntimeError, UnicodeDecodeError),
)
"""What a damaged archive raises, besides OSError for a place before its beginning."""

MAX_SAMPLES = 512
MAX_INPUTS = 256
_ENDING = ".npy"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_NAME_CHARS = 1000
_MAX_HEADER_BYTES = 10_000
_MAX_DIMENSIONS = 32
_HEADER = re.compile(
    r"\{'descr':'([<>|=]?[A-Za-z][0-9]{0,4})','fortran_order':(True|False),"
    r"'shape':\(((?:[0-9]{1,18}(?:,[0-9]{1,18})*,?)?)\),?\}"
)
"""Header of an array of numbers, without its spaces. numpy's reader evaluates it as Python.

Digits match in one way only, so that no header takes longer than its length.
"""


def read_samples(path: Path, limit_bytes: float = math.inf) -> dict[str, NDArray[Any]]:
    """Read an array for each input from an .npz file; the first dimension counts samples.

    ``limit_bytes`` holds for all arrays together. Raises ``InvalidRequest`` if the file is none,
    too large, or its arrays do not go together.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            arrays = _arrays(archive, limit_bytes)
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # not the file's doing
            raise
        raise InvalidRequest(
            f"the samples are no .npz file, as numpy.savez(FILE, **arrays) writes: {error}"
        ) from error
    if not arrays:
        raise InvalidRequest("the samples hold no arrays; give one for each input of the model")
    counts = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    count = next(iter(counts.values()))
    if len(set(counts.values())) > 1 or not 0 < count <= MAX_SAMPLES:
        raise InvalidRequest(
            f"the first dimension of the samples' arrays counts samples: 1 to {MAX_SAMPLES}, "
            f"equally many for each input, not {_shown(counts)}"
        )
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
            raise InvalidRequest(f"samples[{name!r}] holds NaN or infinity, which no error is of")
    return arrays


def samples_file(arrays: Mapping[str, Any]) -> bytes:
    """Content of an .npz file; ``InvalidRequest`` if an array is not of numbers."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in arrays.items():
            with archive.open(name + _ENDING, "w", force_zip64=True) as file:
                try:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
                except ValueError as error:
                    raise InvalidRequest(f"samples[{name!r}]: {error}; give numbers") from error
    return packed.getvalue()


def _arrays(archive: zipfile.ZipFile, limit_bytes: float) -> dict[str, NDArray[Any]]:
    members = archive.infolist()
    if len(members) > MAX_INPUTS:
        raise InvalidRequest(f"the samples hold {len(members)} arrays, more than {MAX_INPUTS}")
    arrays, left = dict[str, NDArray[Any]](), limit_bytes
    for member in members:
        name = member.filename
        is_array = name.endswith(_ENDING) and len(name) <= _MAX_NAME_CHARS
        if not is_array or name.removesuffix(_ENDING) in arrays:
            raise InvalidRequest(f"the samples hold {name[:100]!r}, which is no array")
        if member.compress_type not in _METHODS:
            raise InvalidRequest(f"samples[{name!r}] is packed in an unusual way")
        with archive.open(member) as file:
            array = _array(name.removesuffix(_ENDING), file, left, limit_bytes)
        left -= array.nbytes
        arrays[name.removesuffix(_ENDING)] = array
    return arrays


def _array(name: str, file: IO[bytes], left_bytes: float, limit_bytes: float) -> NDArray[Any]:
    """Read one array whose header is checked before memory is taken."""
    try:
        shape, is_fortran, dtype = _header(file)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"samples[{name!r}] cannot be read: {error}") from error
    if dtype.hasobject:
        raise InvalidRequest(f"samples[{name!r}] holds Python objects (pickles); give numbers")
    if dtype.name not in ARRAY_NAMES.values():
        raise InvalidRequest(f"samples[{name!r}] are of numpy's type {dtype.str}; give numbers")
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes > left_bytes:
        raise InvalidRequest(
            f"the samples take more than {limit_bytes} bytes (BRAID_MAX_SAMPLES_BYTES); give fewer"
        )
    content = file.read(size_bytes + 1)
    if len(content) != size_bytes:
        raise InvalidRequest(f"samples[{name!r}] has other bytes than its shape {shape} says")
    flat = np.frombuffer(content, dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array; ``ValueError`` or ``TypeError`` for no numbers."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    text = re.sub(r"\s+", "", file.read(length).decode("latin1"))
    match = _HEADER.fullmatch(text)
    if match is None:
        raise ValueError(f"no header of an array of numbers: {text[:100]!r}")
    shape = tuple(int(extent) for extent in match[3].split(",") if extent)
    if len(shape) > _MAX_DIMENSIONS or math.prod(max(1, extent) for extent in shape) >= 1 << 63:
        raise ValueError(f"a shape of {len(shape)} dimensions that no array has")
    return shape, match[2] == "True", np.dtype(match[1])


def digest_of(samples: Arrays) -> str:
    """SHA-256 of the content, hex: equal for equal arrays, however they were packed."""
    sha256 = hashlib.sha256()
    for name in sorted(samples):
        array = samples[name]
        sha256.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()


def check_fit(
    samples: Arrays, inputs: Mapping[str, TensorType], template: Mapping[str, TensorType]
) -> int:
    """Check samples against a model's inputs; returns how many there are.

    ``inputs``: static specs for one sample, without those that are set already, which the samples
    may hold, too. A leading extent of 1 may be left out or be there. ``template``: specs of all
    inputs; those with a batch have one sample a row. Raises ``InvalidRequest``.
    """
    if not set(inputs) <= set(samples) <= set(template):
        raise InvalidRequest(
            f"the samples are of {', '.join(sorted(samples))}; give one array for each of the "
            f"model's inputs: {', '.join(inputs)}"
        )
    for name, spec in inputs.items():
        array = samples[name]
        check_type(name, array, spec)
        shape = one_sample(spec, template[name])
        may_omit_row = spec.shape[:1] == (1,)
        if array.shape[1:] != shape and not (
            may_omit_row and array.shape[1:] in (spec.shape, spec.shape[1:])
        ):
            raise InvalidRequest(
                f"samples[{name!r}] has the shape {list(array.shape)}; the model takes {spec}, so "
                f"give [{', '.join(['samples', *map(str, shape)])}]"
            )
    return len(next(iter(samples.values())))


def check_type(name: str, array: NDArray[Any], spec: TensorType) -> None:
    """Raise InvalidRequest unless the samples of an input have its type."""
    wanted = ARRAY_NAMES.get(spec.dtype, spec.dtype)
    if str(array.dtype) != wanted:  # in this machine's order of bytes
        raise InvalidRequest(f"samples[{name!r}] is {array.dtype}, the model takes {wanted}")


def one_sample(spec: TensorType, template: TensorType) -> tuple[int, ...]:
    """Shape of one sample of an input: a row, where the input has a batch."""
    is_batched = bool(template.shape) and template.shape[0] == BATCH
    shape = spec.shape[1:] if is_batched else spec.shape
    return tuple(extent for extent in shape if isinstance(extent, int))


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {name!r}" for name, count in list(counts.items())[:8])
