"""JSON of any form read without holding the event loop up.

    body ──few parts──> its object
      └──many──> Numbers (long lists of them, cut out) ──elements──> lists of some thousands
           └──> the rest ──few parts──> its object
                     └──many──> refused

A list within a list, ``[],``, takes three bytes of text, and sixty in memory. So parts are counted
in the text before objects are made of them. Tensors may have millions of numbers: their lists are
found by the quotes, of which numbers have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from braid.core.errors import InvalidRequest
from braid.core.pieces import Work

QUICK_BYTES = 1 << 18
"""Texts up to this size are read at once, whatever they contain."""

FEW_PARTS = 1 << 15
"""Most parts of a text that is read at once; in longer ones, lists of numbers are read apart."""

MAX_LISTS = 1 << 16
"""Lists and objects that are made at once; beyond are more than a request ever needs."""

MAX_ELEMENTS = 1 << 18
"""Elements and members that are made at once; beyond, all but lists of numbers are refused."""

COMPARED_BYTES = 1 << 18
"""Bytes that are compared at once: both sides stay in the caches."""

LONG_BYTES = QUICK_BYTES // 2
"""Lists of numbers from this size on are read apart."""

PIECE_BYTES = 1 << 16
"""Text of numbers that is read as one piece of work."""

MAX_DEPTH = 16
"""Lists within lists of numbers: no tensor has so many dimensions."""

TAKEN_OUT = ""
"""Only key of the objects that stand where numbers were taken out; its value is their index."""

_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[],")
_SPACES = bytes(b" "[0] if byte in b"[]" else byte for byte in range(256))


@dataclass(frozen=True, slots=True)
class Numbers:
    """Text of a long list of numbers, or of lists of lists of them."""

    text: bytes

    @property
    def is_flat(self) -> bool:
        """True if there is no list within the list."""
        return self.text.find(b"[", 1) < 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of lists that are even, by the first one of each depth."""
        brackets, shape, before = self.text.translate(None, _STRUCTURE), list[int](), 1
        for closed in range(1, len(brackets) - len(brackets.lstrip(b"[")) + 1):
            count = brackets.count(b",", 0, brackets.find(b"]" * closed)) + 1
            shape.insert(0, count // before)
            before = count
        return tuple(shape)

    def are_even(self) -> Work[bool]:
        """True if lists that stand beside each other are equally long."""
        if self.is_flat:
            return True
        brackets = self.text.translate(None, _STRUCTURE)
        depth = len(brackets) - len(brackets.lstrip(b"["))
        if depth > MAX_DEPTH:
            return False
        level = b""
        for closed in range(1, depth + 1):  # from the first list that holds numbers outwards
            begin, end = depth - closed, brackets.find(b"]" * closed) + closed
            if not level:
                level = brackets[begin:end]
                continue
            count = (end - begin - 1) // (len(level) + 1)
            level = b"[" + (level + b",") * (count - 1) + level + b"]"
            yield
        return level == brackets

    def elements(self) -> Iterator[list[Any]]:
        """Yield the elements, some thousands at a time, as if there were no lists within.

        Raises InvalidRequest: they are no JSON.
        """
        text = self.text if self.is_flat else self.text.translate(_SPACES)
        end, last = 0, len(text) - 1  # of the outermost brackets
        while end < last:
            at = end + 1
            end = text.find(b",", at + PIECE_BYTES, last)
            end = last if end < 0 else end
            elements = _read(b"[" + text[at:end].lstrip() + b"]")
            if not elements:
                raise _no_json("a number is missing in a list of them")
            yield elements


@dataclass(frozen=True, slots=True)
class JsonBody:
    """Object of a body."""

    given: dict[str, Any]
    numbers: tuple[Numbers, ...] = ()  # taken out of ``given``

    def list_of(self, value: object) -> list[Any] | Numbers | None:
        """Return the list that a value is, or that was taken out of its place; None: no list."""
        if isinstance(value, list):
            return value
        index = value.get(TAKEN_OUT) if isinstance(value, dict) else None
        if type(index) is not int or not 0 <= index < len(self.numbers):
            return None
        return self.numbers[index]


def read_json(body: bytes) -> Work[JsonBody]:
    """Return the object in a body; an empty body is an empty object.

    Raises InvalidRequest: it is no JSON, no object, or has too many parts.
    """
    if not body.strip():
        return JsonBody({})
    if len(body) <= QUICK_BYTES:
        return JsonBody(_object(body))
    if _has_few_parts(body, FEW_PARTS, FEW_PARTS):
        yield
        return JsonBody(_object(body))
    yield
    plain = yield from _without_escapes(body)
    if _count(plain, '"') <= 4 * MAX_ELEMENTS:
        yield
        rest, rest_plain, numbers = yield from _take_numbers_out(body, plain)
        outside_strings = b"".join(rest_plain.split(b'"')[::2])
        yield
        if _has_few_parts(outside_strings, MAX_LISTS, MAX_ELEMENTS):
            return JsonBody(_object(rest), numbers)
    raise InvalidRequest(
        f"the JSON has more than {MAX_ELEMENTS} elements, or {MAX_LISTS} lists and objects, beside "
        "the numbers of tensors; send tensors as binary data"
    )


def _has_few_parts(text: bytes, lists: int, elements: int) -> bool:
    """True if there are at most so many lists and objects, elements and members in a text."""
    return _count(text, "[") + _count(text, "{") <= lists and _count(text, ",") <= elements


def _count(text: bytes, character: str) -> int:
    """Return ``text.count``, in a quarter of its time."""
    return sum(int(np.count_nonzero(part)) for _, part in _found(text, character))


def _positions(text: bytes, character: str) -> np.ndarray[Any, Any]:
    return np.concatenate([np.flatnonzero(part) + at for at, part in _found(text, character)])


def _found(text: bytes, character: str) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Yield parts of a text, by where they begin: bool, each byte is the character."""
    codes, wanted = np.frombuffer(text, np.uint8), ord(character)
    for at in range(0, len(codes), COMPARED_BYTES):
        yield at, codes[at : at + COMPARED_BYTES] == wanted


def _without_escapes(body: bytes) -> Work[bytes]:
    """Return a text of the same length in which each quote begins or ends a string."""
    if b"\\" not in body:
        return body
    for escaped in (rb"\\", rb"\""):
        body = body.replace(escaped, b"__")
        yield
    return body


def _take_numbers_out(body: bytes, plain: bytes) -> Work[tuple[bytes, bytes, tuple[Numbers, ...]]]:
    """Return both texts without the long lists of numbers, and these."""
    rest, rest_plain, numbers, at = list[bytes](), list[bytes](), list[Numbers](), 0
    quotes = np.append(_positions(plain, '"'), len(plain))
    for index in np.flatnonzero(np.diff(quotes) > QUICK_BYTES).tolist():
        yield
        begin, end = int(quotes[index]) + 1, int(quotes[index + 1])
        place = (yield from _list_in(plain, begin, end)) if index % 2 else None  # else a string
        if place is None:
            continue
        mark = b'{"":%d}' % len(numbers)
        rest += (body[at : place[0]], mark)
        rest_plain += (plain[at : place[0]], mark)
        numbers.append(Numbers(body[slice(*place)]))
        at = place[1]
    return b"".join([*rest, body[at:]]), b"".join([*rest_plain, plain[at:]]), tuple(numbers)


def _list_in(text: bytes, begin: int, end: int) -> Work[tuple[int, int] | None]:
    """Return where the first list in a part of a text begins and ends.

    None: it is short, or has objects.
    """
    first, depth = text.find(b"[", begin, end), 0
    if first < 0:
        return None
    if text.find(b"[", first + 1, end) < 0:
        return _unless_short(text, first, text.find(b"]", first, end) + 1)
    for at in range(first, end, QUICK_BYTES):
        codes = np.frombuffer(text, np.uint8)[at : min(at + QUICK_BYTES, end)]
        brackets = np.flatnonzero((codes == ord("[")) | (codes == ord("]")))
        if len(brackets):
            depths = depth + np.cumsum(np.where(codes[brackets] == ord("["), 1, -1))
            closed, depth = np.flatnonzero(depths == 0), int(depths[-1])
            if len(closed):
                return _unless_short(text, first, at + int(brackets[closed[0]]) + 1)
        yield
    return None


def _unless_short(text: bytes, first: int, last: int) -> tuple[int, int] | None:
    is_short, has_objects = last - first < LONG_BYTES, text.find(b"{", first, last) >= 0
    return None if is_short or has_objects else (first, last)


def _object(body: bytes) -> dict[str, Any]:
    document = _read(body)
    if not isinstance(document, dict):
        raise InvalidRequest("the body is JSON, but no object")
    return document


def _read(body: bytes) -> Any:
    """Read JSON: orjson takes a quarter of the time of Python's, which knows NaN and infinities.

    orjson has too little memory for dense text that begins with a space. Raises InvalidRequest: it
    is none.
    """
    try:
        try:
            return orjson.loads(body)
        except ValueError as error:
            if b"NaN" in body or b"Infinity" in body or "allocate memory" in str(error):
                return json.loads(body)
            raise
    except RecursionError:
        raise _no_json("nested too deeply") from None
    except ValueError as error:
        raise _no_json(str(error)) from None


def _no_json(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not JSON: {reason[:200]}")
