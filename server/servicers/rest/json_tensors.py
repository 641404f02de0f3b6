"""Tensors in JSON: a list of elements in row-major order, nested by the shape or flat.

Numbers pass through JSON unchanged, bit by bit: an FP32 is written as the double of the same value.
NaN and infinities are written as ``NaN``, ``Infinity`` and ``-Infinity``, as most readers of JSON
understand. Elements of BYTES are strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.strings import elements_of, length_prefixed
from braid.core.tensor import BYTES
from braid.server.servicers.oip.contents import DTYPES


def raw_of(name: str, datatype: str, data: object) -> bytes:
    """Return the raw form of an input's ``data``.

    Raises:
        InvalidTensor: it is no list, is ragged, or has an element that the datatype has not.
    """
    if not isinstance(data, list):
        raise InvalidTensor(f"input {name!r} has no list of elements as its 'data'")
    if datatype == BYTES:
        return length_prefixed(_strings(name, data))
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise InvalidTensor(f"input {name!r} has the unknown datatype {datatype[:40]!r}")
    try:
        given = np.array(data)
        if dtype.kind in "iu" and given.dtype.kind in "fO":  # integers beyond 2^63 became floats
            given = _integers(data)
    except (ValueError, OverflowError):
        raise InvalidTensor(f"input {name!r} has 'data' that is nested unevenly") from None
    if not given.size:
        return b""
    kinds = "b" if datatype == "BOOL" else "iuO" if dtype.kind in "iu" else "fiu"
    if given.dtype.kind not in kinds:
        raise InvalidTensor(f"input {name!r} has an element in 'data' that is no {datatype}")
    return _converted(name, datatype, given, dtype).tobytes()


def _converted(name: str, datatype: str, given: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return elements in the datatype.

    Raises:
        InvalidTensor: one is out of its range.
    """
    outside = InvalidTensor(f"input {name!r} has a value outside the range of {datatype}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(given.min()) < limits.min or int(given.max()) > limits.max:
            raise outside
        return given.astype(dtype)
    with np.errstate(over="ignore"):
        converted = given.astype(dtype)
    if datatype != "BOOL" and not np.array_equal(np.isinf(given), np.isinf(converted)):
        raise outside
    return converted


def _integers(data: list[Any]) -> np.ndarray:
    """Return Python's integers, or floats if there is anything else."""
    given = np.array(data, object)
    is_integral = all(type(each) is int for each in given.flat)
    return given if is_integral else np.array([0.5])


def _strings(name: str, data: list[Any]) -> Iterator[bytes]:
    for each in data:
        if isinstance(each, list):
            yield from _strings(name, each)
        elif isinstance(each, str):
            yield each.encode("utf-8", "surrogatepass")
        else:
            raise InvalidTensor(f"input {name!r} has an element in 'data' that is no string")


def data_of(name: str, datatype: str, raw: bytes | memoryview) -> list[Any]:
    """Return an output's elements for JSON, flat.

    Raises:
        InvalidRequest: they are bytes that are no text.
    """
    if datatype != BYTES:
        elements: list[Any] = np.frombuffer(raw, DTYPES[datatype]).tolist()
        return elements
    try:
        return [str(each, "utf-8") for each in elements_of(raw)]
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"output {name!r} is no text; ask for it with the parameter binary_data"
        ) from None
