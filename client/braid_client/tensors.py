"""Conversion between numpy arrays and tensors of the wire.

    array, any layout and byte order ──> little-endian bytes, row-major ──> read-only array

Sending copies an array once, into the message. Receiving copies at most once: the array reads the
message's bytes if they are aligned, and is therefore read-only (``array.copy()`` gives one to
write to).

Strings are arrays of ``str`` or of objects that are ``str`` or ``bytes``; they come back as objects
that are ``str``.

BF16 has no numpy type. With the package ``ml_dtypes`` installed, BF16 tensors are arrays of
``ml_dtypes.bfloat16``; without it they are ``BFloat16Bits``.
"""

import math
import struct
import sys
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from braid_client import wire_fields
from braid_client.errors import InvalidArgument, ServerError
from braid_client.wire import inference_pb2 as wire
from braid_client.wire_fields import Part

Array = NDArray[Any]

_DATA = wire.Tensor.DESCRIPTOR.fields_by_name["data"].number

# Open Inference Protocol v2 name -> numpy type as it lies on the wire.
WIRE_TYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "INT8": np.dtype("i1"),
    "UINT16": np.dtype("<u2"),
    "INT16": np.dtype("<i2"),
    "UINT32": np.dtype("<u4"),
    "INT32": np.dtype("<i4"),
    "UINT64": np.dtype("<u8"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES: Mapping[np.dtype[Any], str] = {
    given: name for name, dtype in WIRE_TYPES.items() for given in (dtype, dtype.newbyteorder(">"))
}
_STORED: Mapping[str, np.dtype[Any]] = {**WIRE_TYPES, "BF16": np.dtype("<u2")}
BYTES = "BYTES"
"""Type of strings."""

DTYPES: tuple[str, ...] = (*_STORED, BYTES)
"""All dtype names of the wire."""

_LENGTH = struct.Struct("<I")
_MOST_AXES = 64  # of numpy


class BFloat16Bits(np.ndarray[Any, np.dtype[np.uint16]]):
    """BF16 values as their bits: an array of uint16 that refuses arithmetic.

    Slices, reshapes and copies stay BFloat16Bits. ``float32()`` gives the values.
    """

    @classmethod
    def of(cls, values: Array) -> Self:
        """Round real values to BF16, to nearest, ties to even; NaN stays NaN."""
        exact = np.ascontiguousarray(values, dtype=np.float32)
        bits = exact.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
        rounded[np.isnan(exact)] = 0x7FC0
        return rounded.astype(np.uint16).reshape(np.shape(values)).view(cls)

    def float32(self) -> NDArray[np.float32]:
        """Return the values as FP32, exactly."""
        bits = np.asarray(self).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)

    def __array_ufunc__(self, *args: Any, **options: Any) -> Any:
        """Refuse arithmetic, which would compute on bits instead of values."""
        return NotImplemented


# numpy type of ``ml_dtypes`` for BF16; None if that package is not installed.
try:
    import ml_dtypes
except ImportError:
    _BFLOAT16: np.dtype[Any] | None = None
else:
    _BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dtype_name(array: Array) -> str:
    """Name on the wire of an array's element type.

    Raises:
        InvalidArgument: the wire has no such type (complex numbers, dates, ...).
    """
    if isinstance(array, BFloat16Bits):
        return "BF16"
    name = _NAMES.get(array.dtype)
    if name is not None:
        return name
    if array.dtype.name == "bfloat16":
        return "BF16"
    if array.dtype.kind in "OUST":
        return BYTES
    raise InvalidArgument(
        f"an array of {array.dtype} cannot be sent; convert it to one of {', '.join(DTYPES)}"
    )


def stored(name: str, array: Array) -> tuple[str, Array]:
    """Return name of the type, and the elements of an array as the wire wants them.

    These are row-major and little-endian: the array itself if it lies so, else a copy. Strings
    are left as they are, for ``write_strings``.

    Raises:
        InvalidArgument: not an array, or of a type that the wire has not.
    """
    if not isinstance(array, np.ndarray | np.generic):
        which = f"input {name!r}" if name else "the input"
        raise InvalidArgument(
            f"{which} is a {type(array).__name__}; give a numpy array, so that its type is certain"
        )
    array = np.asanyarray(array)
    dtype, shape = dtype_name(array), array.shape
    if dtype == BYTES:
        return dtype, array
    if dtype == "BF16":
        array = np.ascontiguousarray(array).view(np.uint16)
    return dtype, np.ascontiguousarray(array, _STORED[dtype]).reshape(shape)


def write_tensor(name: str, dtype: str, elements: Array) -> list[Part]:
    """Return the parts of the Tensor of what ``stored`` returned, whose memory is among them."""
    head = wire.Tensor(name=name, dtype=dtype, shape=elements.shape).SerializeToString()
    return [head, *wire_fields.field(_DATA, [elements.reshape(-1).view(np.uint8).data])]


def write_strings(name: str, array: Array) -> list[Part]:
    """Return the parts of the Tensor of strings: each one's UTF-8 after its length in four bytes.

    Raises:
        InvalidArgument: an element is neither ``str`` nor ``bytes``, or is no Unicode.
    """
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        if isinstance(element, str):
            try:
                element = element.encode()
            except UnicodeEncodeError:
                raise InvalidArgument(f"input {name!r} has a string that is no Unicode") from None
        elif not isinstance(element, bytes):
            raise InvalidArgument(
                f"input {name!r} is an array of objects with a {type(element).__name__} in it; "
                "arrays of objects are sent as strings, so each must be str or bytes"
            )
        parts += (_LENGTH.pack(len(element)), element)
    head = wire.Tensor(name=name, dtype=BYTES, shape=array.shape).SerializeToString()
    return [head, *wire_fields.field(_DATA, parts)]


def read_tensor(message: bytes | memoryview) -> tuple[str, Array]:
    """Return name and array of a serialised Tensor; see ``array_of``.

    Raises:
        DecodeError: no such message.
        ServerError: the tensor contradicts itself; nothing that a caller can mend.
    """
    rest, contents = wire_fields.split(message, _DATA) or (bytes(message), [])
    tensor = wire.Tensor.FromString(rest)
    return tensor.name, array_of(tensor, contents[-1] if contents else tensor.data)


def array_of(tensor: wire.Tensor, data: bytes | memoryview) -> Array:
    """Return the array of a tensor whose contents are ``data``; the array is read-only.

    It lies over these bytes, or over a copy where they are not aligned for its type.

    Raises:
        ServerError: the tensor contradicts itself, or numpy has no such shape.
    """
    shape = tuple(tensor.shape)
    if len(shape) > _MOST_AXES or min(shape, default=0) < 0:
        raise ServerError(f"output {tensor.name!r} has too many axes or an extent below 0")
    try:
        return _array(tensor, shape, data)
    except ValueError as error:  # of numpy: 2**62 beside 0, or its axes are fewer
        raise ServerError(f"output {tensor.name!r} cannot be an array: {error}") from None


def _array(tensor: wire.Tensor, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    dtype = tensor.dtype
    stored = _STORED.get(dtype)
    if stored is None:
        if dtype == BYTES:
            return _strings(tensor, shape, data)
        raise ServerError(f"output {tensor.name!r} has the unknown dtype {dtype!r}")
    if len(data) != math.prod(shape) * stored.itemsize:
        raise ServerError(
            f"output {tensor.name!r} is {dtype}{list(shape)} but has {len(data)} bytes"
        )
    array = np.frombuffer(data, stored).reshape(shape)
    if sys.byteorder == "big":
        array = array.astype(stored.newbyteorder("="))
    elif not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    if dtype != "BF16":
        return array
    return array.view(BFloat16Bits) if _BFLOAT16 is None else array.view(_BFLOAT16)


def _strings(tensor: wire.Tensor, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    elements: list[str] = []
    at, whole = 0, bytes(data)
    try:
        while at < len(whole):
            begin = at + _LENGTH.size
            at = begin + _LENGTH.unpack_from(whole, at)[0]
            elements.append(whole[begin:at].decode())
    except (struct.error, UnicodeDecodeError):
        at = -1
    if at != len(whole) or len(elements) != math.prod(shape):
        raise ServerError(f"output {tensor.name!r} is BYTES{list(shape)}, but its data is not")
    array = np.empty(len(elements), object)
    array[:] = elements
    array = array.reshape(shape)
    array.flags.writeable = False
    return array
