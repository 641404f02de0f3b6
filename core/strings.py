"""Strings as they lie in messages: the Open Inference Protocol's raw form of BYTES tensors.

    4 bytes: length, little-endian │ UTF-8 │ 4 bytes: length │ UTF-8 │ ...

Tensors along their first axis are joined by joining their bytes.
"""

from __future__ import annotations

import struct
from array import array
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from braid.core.pieces import PIECE_BYTES, Work

LENGTH = struct.Struct("<I")
"""Length of a string, before its text."""

MAX_STRINGS = 1 << 16
"""Elements of one tensor of strings, at most: to check that many takes the event loop 20 ms."""

PIECE_STRINGS = 1 << 13
"""Elements that are checked or written as one piece of work."""


@dataclass(frozen=True, slots=True)
class Strings:
    """Elements of a tensor of strings, checked."""

    data: bytes | memoryview
    ends: array[int]  # where each element ends in ``data``

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def part(self, first: int, last: int) -> tuple[memoryview, int]:
        """Return the elements from ``first`` up to, without, ``last``, and where they begin."""
        start = self.ends[first - 1] if first else 0
        return memoryview(self.data)[start : self.ends[last - 1] if last else 0], start


def read_strings(data: bytes | memoryview, count: int) -> Work[Strings]:
    """Check the raw form of ``count`` strings.

    Raises ValueError: the lengths do not fit the bytes or the count, or a string is no UTF-8; the
    message begins with a verb, for the name of a tensor before it.
    """
    ends, at, size, pause = array("I"), 0, len(data), PIECE_BYTES
    unpack = LENGTH.unpack_from
    while at < size:
        index = len(ends)
        if index == count:
            raise ValueError(f"has more than the {count} strings of its shape")
        if size - at < LENGTH.size:
            raise ValueError(f"ends within the length of element {index}")
        end = at + LENGTH.size + unpack(data, at)[0]
        if end > size:
            raise ValueError(
                f"has the length {end - at - LENGTH.size} before element {index}, but "
                f"{size - at - LENGTH.size} bytes are left"
            )
        try:
            if end - at <= PIECE_BYTES:
                str(data[at + LENGTH.size : end], "utf-8")
            else:
                for _ in text_parts(data[at + LENGTH.size : end]):
                    yield
        except UnicodeDecodeError:
            raise ValueError(f"has no UTF-8 in element {index}") from None
        ends.append(end)
        at = end
        if at >= pause or len(ends) % PIECE_STRINGS == 0:
            pause = at + PIECE_BYTES
            yield
    if len(ends) < count:
        raise ValueError(f"has {len(ends)} strings; its shape takes {count}")
    return Strings(data, ends)


def text_parts(data: bytes | memoryview, part_bytes: int = PIECE_BYTES) -> Iterator[str]:
    """Yield a string in parts that are decoded one by one; raises UnicodeDecodeError."""
    decode = getincrementaldecoder("utf-8")().decode
    for at in range(0, len(data), part_bytes):
        yield decode(data[at : at + part_bytes], at + part_bytes >= len(data))


def length_prefixed(elements: Iterable[bytes]) -> bytes:
    """Return the raw form of strings, given as UTF-8."""
    return b"".join(part for element in elements for part in (LENGTH.pack(len(element)), element))


def elements_of(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """Yield each string of a raw form that is right."""
    at = 0
    while at < len(data):
        begin = at + LENGTH.size
        at = begin + LENGTH.unpack_from(data, at)[0]
        yield data[begin:at]
