"""Tensors in JSON: a list of elements in row-major order, nested by the shape or flat.

Numbers pass through JSON unchanged, bit by bit: an FP32 is written as the double of the same value.
NaN and infinities are written as ``NaN``, ``Infinity`` and ``-Infinity``, as most readers of JSON
understand. Elements of BYTES are strings.

Both are done in pieces: the text of a tensor has up to ten times its bytes, and is never there as a
whole.
"""

import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import orjson

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import Work, joined
from braid.core.strings import MAX_STRINGS, PIECE_STRINGS, elements_of, length_prefixed, text_parts
from braid.core.tensor import BYTES
from braid.server.servicers.oip.contents import DTYPES, converted
from braid.server.servicers.rest.json_reading import Numbers

PIECE_ELEMENTS = 1 << 15
"""Numbers that are written as one piece of work."""

FEW_ELEMENTS = 1 << 10
"""Most numbers that a list of Python converts in less time than numpy."""

PIECE_TEXT_BYTES = 1 << 19
"""Bytes of strings that are written as one piece of work."""


def raw_of(name: str, datatype: str, data: list[Any] | Numbers | None) -> Work[bytes]:
    """Return the raw form of an input's ``data``; None: it is no list.

    Raises InvalidTensor: it is no list, is ragged, or has an element that the datatype has not.
    """
    if data is None:
        raise InvalidTensor(f"input {name!r} has no list of elements as its 'data'")
    if datatype == BYTES:
        return (yield from _raw_strings(name, data))
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise InvalidTensor(f"input {name!r} has the unknown datatype {datatype[:40]!r}")
    if isinstance(data, list):
        return _raw_numbers(name, datatype, data, dtype)
    if data.shape is None:
        raise _uneven(name)
    raw = []
    for elements in data.elements():
        yield
        raw.append(_raw_numbers(name, datatype, elements, dtype))
    return (yield from joined(raw))


def _raw_numbers(name: str, datatype: str, data: list[Any], dtype: np.dtype[Any]) -> bytes:
    # numpy makes strings of all elements, as wide as the longest, where there is one.
    if not _kinds_of(data) <= {int, float, bool}:
        raise InvalidTensor(f"input {name!r} has an element in 'data' that is no {datatype}")
    try:
        given = np.array(data)
        if dtype.kind in "iu" and given.dtype.kind in "fO":  # integers beyond 2^63 became floats
            given = _integers(data)
    except (ValueError, OverflowError):
        raise _uneven(name) from None
    if not given.size:
        return b""
    kinds = "b" if datatype == "BOOL" else "iuO" if dtype.kind in "iu" else "fiu"
    if given.dtype.kind not in kinds:
        raise InvalidTensor(f"input {name!r} has an element in 'data' that is no {datatype}")
    return converted(name, datatype, given).tobytes()


def _kinds_of(data: list[Any]) -> set[type]:
    """Types of the elements of a list, and of those inside of it."""
    kinds, lists = set[type](), [data]
    while lists:
        elements = lists.pop()
        found = set(map(type, elements))
        if list in found:
            lists += [element for element in elements if type(element) is list]
        kinds |= found - {list}
    return kinds


def _uneven(name: str) -> InvalidTensor:
    return InvalidTensor(f"input {name!r} has 'data' that is nested unevenly")


def _integers(data: list[Any]) -> np.ndarray:
    """Return Python's integers, or floats if there is anything else."""
    given = np.array(data, object)
    is_integral = all(type(element) is int for element in given.flat)
    return given if is_integral else np.array([0.5])


def _raw_strings(name: str, data: list[Any] | Numbers) -> Work[bytes]:
    if isinstance(data, Numbers):
        raise _no_string(name)
    raw, strings, count = list[bytes](), _strings(name, data), 0
    while some := list(islice(strings, PIECE_STRINGS)):
        if raw:
            yield
        raw.append(length_prefixed(some))
        count += len(some)
        if count > MAX_STRINGS:
            raise InvalidTensor(
                f"input {name!r} has more than {MAX_STRINGS} strings; a request may have so many "
                "in each input"
            )
    return (yield from joined(raw))


def _strings(name: str, data: list[Any]) -> Iterator[bytes]:
    lists = [iter(data)]  # each within the one before
    while lists:
        for element in lists[-1]:
            if isinstance(element, str):
                yield element.encode("utf-8", "surrogatepass")
            elif isinstance(element, list):
                lists.append(iter(element))
                break
            else:
                raise _no_string(name)
        else:
            lists.pop()


def _no_string(name: str) -> InvalidTensor:
    return InvalidTensor(f"input {name!r} has an element in 'data' that is no string")


def texts_of(
    name: str, datatype: str, raw: bytes | memoryview, elements: int = PIECE_ELEMENTS
) -> Iterator[bytes]:
    """Yield an output's elements as JSON, flat and without brackets, in pieces.

    Raises InvalidRequest: they are bytes that are no text.
    """
    if datatype == BYTES:
        yield from _texts_of_strings(name, raw)
        return
    numbers = np.frombuffer(raw, DTYPES[datatype])
    for at in range(0, len(numbers), elements):
        text = _text_of_numbers(numbers[at : at + elements])
        yield b"," + text if at else text


def _text_of_numbers(elements: np.ndarray) -> bytes:
    wide: Any
    if len(elements) <= FEW_ELEMENTS:
        wide = elements.tolist()
    elif elements.dtype.kind in "biu":
        wide = elements.copy()  # aligned
    else:
        with np.errstate(invalid="ignore"):  # NaN of some bits
            wide = elements.astype(np.float64)
    text = orjson.dumps(wide, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    if b"null" not in text:
        return text
    values = wide if isinstance(wide, list) else wide[~np.isfinite(wide)].tolist()
    others = (value for value in values if not math.isfinite(value))  # orjson writes null for them
    first, *rest = text.split(b"null")
    return first + b"".join(json.dumps(next(others)).encode() + part for part in rest)


def _texts_of_strings(name: str, raw: bytes | memoryview) -> Iterator[bytes]:
    together: list[str] = []
    size, is_first = 0, True
    try:
        for text in elements_of(raw):
            if together and (size + len(text) > PIECE_TEXT_BYTES or len(together) >= PIECE_STRINGS):
                yield _listed(together, is_first)
                together, size, is_first = [], 0, False
            if len(text) > PIECE_TEXT_BYTES:
                yield b'"' if is_first else b',"'
                for part in text_parts(text, PIECE_TEXT_BYTES):
                    yield orjson.dumps(part)[1:-1]
                yield b'"'
                is_first = False
            else:
                together.append(str(text, "utf-8"))
                size += len(text)
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"output {name!r} is no text; ask for it with the parameter binary_data"
        ) from None
    if together:
        yield _listed(together, is_first)


def _listed(texts: list[str], is_first: bool) -> bytes:
    text = orjson.dumps(texts)[1:-1]
    return text if is_first else b"," + text
