"""JSON of any form read without holding the event loop up.

    body ──> long lists of numbers, cut out ──elements──> lists of some thousands
      └────> the rest ──few parts──> its object
                   └──many──> refused

A list within a list, ``[],``, takes three bytes of text, and sixty in memory. So parts of a long
text are counted before objects are made of them. Tensors may have millions of numbers: their lists
are found by the quotes, of which numbers have none.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import orjson

from braid.core.errors import InvalidRequest
from braid.core.pieces import PIECE_BYTES, Work

QUICK_BYTES = 1 << 18
"""Texts up to this size are read at once, whatever they contain."""

MAX_PARTS = 1 << 19
"""Commas, lists and objects of a text beside its long lists of numbers; beyond, it is refused."""

LONG_BYTES = QUICK_BYTES // 2
"""Lists of numbers from this size on are read apart."""

READ_BYTES = 1 << 16
"""Text of numbers that is read as one piece of work."""

MAX_DEPTH = 16
"""Lists within lists of numbers: no tensor has so many dimensions."""

_LIST = re.compile(rb'(?<!\\)"\s*:\s*\[')  # from the end of a key to the first bracket
_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[],")
_SPACES = bytes(b" "[0] if byte in b"[]" else byte for byte in range(256))


@dataclass(frozen=True, slots=True)
class Numbers:
    """Long list of numbers, or of lists of lists of them."""

    text: bytes
    shape: tuple[int, ...] | None  # None: lists beside each other are not equally long

    def elements(self) -> Iterator[list[Any]]:
        """Yield the elements, some thousands at a time, as if there were no lists within.

        Raises InvalidRequest: they are no JSON.
        """
        text = self.text if len(self.shape or ()) == 1 else self.text.translate(_SPACES)
        end, last = 0, len(text) - 1  # of the outermost brackets
        while end < last:
            at = end + 1
            end = text.find(b",", at + READ_BYTES, last)
            end = last if end < 0 else end
            elements = _read(b"[" + text[at:end].lstrip() + b"]")
            if not elements:
                raise _no_json("a number is missing in a list of them")
            yield elements


@dataclass(frozen=True, slots=True)
class JsonBody:
    """Object of a body; where numbers were taken out stands an object with their key."""

    given: dict[str, Any]
    numbers: Mapping[str, Numbers] = field(default_factory=dict)  # by keys that no caller knows

    def list_of(self, value: object) -> list[Any] | Numbers | None:
        """Return the list that a value is, or that was taken out of its place; None: no list."""
        if isinstance(value, dict):
            return self.numbers.get(next(iter(value), ""))
        return value if isinstance(value, list) else None


def read_json(body: bytes) -> Work[JsonBody]:
    """Return the object in a body; an empty body is an empty object.

    Raises InvalidRequest: it is no JSON, no object, or has too many parts.
    """
    if not body.strip():
        return JsonBody({})
    if len(body) <= QUICK_BYTES:
        return JsonBody(_object(body))
    rest, numbers = yield from _numbers_apart(body)
    parts = 0
    for at in range(0, len(rest), PIECE_BYTES):
        yield
        piece = rest[at : at + PIECE_BYTES]
        parts += len(piece) - len(piece.translate(None, b",[{"))
        if parts > MAX_PARTS:
            raise InvalidRequest(
                f"the JSON has more than {MAX_PARTS} elements, lists and objects beside the "
                "numbers of tensors; send tensors as binary data"
            )
    yield
    return JsonBody(_object(rest), numbers)


def _numbers_apart(body: bytes) -> Work[tuple[bytes, dict[str, Numbers]]]:
    """Return a text without its long lists of numbers, and these.

    Each lies between two quotes, of which the first ends a key. Where that one begins a string, the
    text is no JSON afterwards.
    """
    rest, numbers, kept, quote = list[bytes](), dict[str, Numbers](), 0, 0
    for at in range(LONG_BYTES, len(body), LONG_BYTES):
        if at < quote:
            continue
        before, quote = body.rfind(b'"', quote, at), body.find(b'"', at)
        quote = len(body) if quote < 0 else quote
        found = _LIST.match(body, max(before, 0)) if quote - before > LONG_BYTES else None
        if found is None:
            continue
        yield
        first = found.end() - 1
        braces = [at for brace in (b"{", b"}") if (at := body.find(brace, first, quote)) >= 0]
        last = body.rfind(b"]", first, min(braces, default=quote)) + 1
        if last - first >= LONG_BYTES:
            text, key = body[first:last], token_hex(8)
            numbers[key] = Numbers(text, (yield from _shape(text)))
            rest += (body[kept:first], b'{"%s":0}' % key.encode())
            kept = last
    return b"".join([*rest, body[kept:]]), numbers


def _shape(text: bytes) -> Work[tuple[int, ...] | None]:
    """Return the extents of a list; None: they differ, or its brackets are no pairs."""
    if text.find(b"[", 1) < 0 and text.find(b"]") == len(text) - 1:
        return (text.count(b",") + 1,)
    brackets = text.translate(None, _STRUCTURE)
    depth = len(brackets) - len(brackets.lstrip(b"["))
    if depth > MAX_DEPTH:
        return None
    shape, level = list[int](), b""
    for closed in range(1, depth + 1):  # from the first list that holds numbers outwards
        yield
        begin, end = depth - closed, brackets.find(b"]" * closed) + closed
        extent = (end - begin - 1) // (len(level) + 1)
        level = b"[" + (level + b",") * (extent - 1) + level + b"]"
        shape.insert(0, extent)
    return tuple(shape) if level == brackets else None


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
