"""Tensor contents in other forms than raw bytes: typed ones in requests, classes in answers.

Raw: little-endian elements in row-major order; for BYTES each element is preceded by its length
in four bytes. FP16 and BF16 have no typed form, they are always sent raw.

Classification: FP32 [rows, classes] ──largest k──> BYTES [rows, k], each "value:class",
or "value:class:label".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import Work, joined
from braid.core.strings import MAX_STRINGS, length_prefixed
from braid.core.tensor import BYTES
from braid.server.inference.requests import OutputTensor
from braid_client.tensors import WIRE_TYPES

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT8", "INT16", "INT32"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT8", "UINT16", "UINT32"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
}
"""Field of InferTensorContents -> datatypes that are sent in it, its own the last."""

TYPED = {datatype: field for field, of in _FIELDS.items() for datatype in of}
"""Datatype -> field of InferTensorContents."""

_BYTES_FIELD = "bytes_contents"

PIECE_ELEMENTS = 1 << 16
"""Elements that are converted or sorted as one piece of work."""

PIECE_CLASSES = 1 << 12
"""Classes that are written as one piece of work."""

MAX_CLASSES_IN_ALL = 1 << 20
"""Classes of all rows of an output: each is a string."""

CLASS_BYTES = 32
"""Bytes that a class of one row is expected to take in an answer."""

DTYPES: Mapping[str, np.dtype[Any]] = {**WIRE_TYPES, "BF16": np.dtype(ml_dtypes.bfloat16)}


def raw_bytes(name: str, datatype: str, contents: Any) -> Work[bytes]:
    """Raw form of an ``InferTensorContents``. InvalidTensor: it does not fit the datatype."""
    filled = [field.name for field, _ in contents.ListFields()]
    wanted = _BYTES_FIELD if datatype == BYTES else TYPED.get(datatype)
    if not wanted:
        raise InvalidTensor(
            f"input {name!r} of datatype {datatype!r} has no typed contents; "
            "send it in raw_input_contents"
        )
    if filled not in ([], [wanted]):
        raise InvalidTensor(
            f"input {name!r} of datatype {datatype} has {', '.join(filled)}; "
            f"its elements belong in {wanted}"
        )
    values = getattr(contents, wanted)
    if datatype == BYTES and len(values) > MAX_STRINGS:
        raise InvalidTensor(
            f"input {name!r} has {len(values)} strings; a request may have {MAX_STRINGS} in each "
            "input"
        )
    parts = []
    for at in range(0, len(values), PIECE_ELEMENTS):
        piece = values[at : at + PIECE_ELEMENTS]
        parts.append(
            length_prefixed(piece) if datatype == BYTES else _numbers(name, datatype, piece)
        )
        if at + PIECE_ELEMENTS < len(values):
            yield
    return (yield from joined(parts))


def _numbers(name: str, datatype: str, values: list[Any]) -> bytes:
    own = DTYPES[_FIELDS[TYPED[datatype]][-1]]
    return converted(name, datatype, np.array(values, own)).tobytes()


def converted(name: str, datatype: str, given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return elements in the datatype. Raises InvalidTensor: one is out of its range."""
    outside = InvalidTensor(f"input {name!r} has a value outside the range of {datatype}")
    dtype = DTYPES[datatype]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(given.min()) < limits.min or int(given.max()) > limits.max:
            raise outside
        return given.astype(dtype)
    with np.errstate(over="ignore"):
        made = given.astype(dtype)
    if datatype != "BOOL" and not np.array_equal(np.isinf(given), np.isinf(made)):
        raise outside
    return made


def classify(
    name: str, tensor: OutputTensor, count: int, batched: bool, labels: Sequence[str] = ()
) -> Work[OutputTensor]:
    """The ``count`` largest values of each row, largest first; ties by class id."""
    rows, *axes = tensor.shape if batched and tensor.shape else (1, *tensor.shape)
    classes = math.prod(axes)
    if tensor.dtype in ("BOOL", BYTES) or not tensor.shape or classes < 1:
        raise InvalidRequest(
            f"output {name!r} is {tensor.dtype}{list(tensor.shape)}: nothing to classify"
        )
    kept = min(count, classes)
    if rows * kept > MAX_CLASSES_IN_ALL:
        raise InvalidRequest(
            f"{kept} classes of {rows} rows of output {name!r} are more than {MAX_CLASSES_IN_ALL} "
            "strings; ask for fewer, or for the tensor itself"
        )
    values = np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(rows, classes)
    parts, together = list[bytes](), max(1, PIECE_ELEMENTS // classes)
    for first in range(0, rows, together):
        some = values[first : first + together]
        order = yield from _largest(some, kept)
        largest = _wide(np.take_along_axis(some, order, 1))
        for texts in _classes(largest.reshape(-1), order.reshape(-1), labels):
            if parts:
                yield
            parts.append(length_prefixed(texts))
    shape = (rows, kept) if batched else (kept,)
    return OutputTensor(BYTES, shape, (yield from joined(parts)))


def _largest(values: np.ndarray[Any, Any], kept: int) -> Work[np.ndarray[Any, Any]]:
    """Return the class ids of the largest values of each row, largest first; NaN comes last."""
    rows, classes = values.shape
    if classes <= PIECE_ELEMENTS:
        return _sorted(values)[:, :kept]
    best = np.empty((rows, 0), np.int64)
    for first in range(0, classes, PIECE_ELEMENTS):
        ids = np.arange(first, min(first + PIECE_ELEMENTS, classes))
        ids = np.concatenate((best, np.broadcast_to(ids, (rows, len(ids)))), 1)
        order = _sorted(np.take_along_axis(values, ids, 1))[:, :kept]
        best = np.take_along_axis(ids, order, 1)
        yield
    return best


def _sorted(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the indices that sort each row, largest first."""
    return np.argsort(-_wide(values), axis=1, kind="stable")


def _wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(invalid="ignore"):  # NaN of some bits
        return values.astype(np.float64)


def _classes(
    values: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], labels: Sequence[str]
) -> Iterator[list[bytes]]:
    for at in range(0, len(ids), PIECE_CLASSES):
        some = slice(at, at + PIECE_CLASSES)
        pairs = zip(values[some].tolist(), ids[some].tolist(), strict=True)
        yield [f"{value:f}:{index}{_label(labels, index)}".encode() for value, index in pairs]


def _label(labels: Sequence[str], index: int) -> str:
    return f":{labels[index]}" if index < len(labels) else ""
