"""Large fields of serialised protobuf messages, taken out and put in with few copies.

    message ──split──> the same without its large field, parsed as usual │ views of the large ones
    reply   <──join──── small message, serialised as usual               │ tensors, copied once

Protobuf copies bytes fields when it parses a message and again at each access, and it serialises
from copies of copies. For a tensor of 600 KB that takes longer than the rest of its way through
the server or the client, which both use this. The protobuf wire format lets fields stand in any
order and be put together by concatenation
(https://protobuf.dev/programming-guides/encoding/), so only the outermost fields
are told apart here; protobuf parses their contents.
"""

from collections.abc import Sequence
from functools import lru_cache

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 4096
"""Messages of more outermost fields are left to protobuf: this is Python."""

SMALL_BYTES = 8192
"""Messages of fewer bytes are left to protobuf, whose copies of them take less time than this."""

Part = bytes | memoryview


def split(message: bytes | memoryview, number: int) -> tuple[bytes, list[memoryview]] | None:
    """Take the length-delimited fields ``number`` out of a message.

    Returns:
        The message without them, and views of their contents in order; None if the message is
        small, not well-formed at its outermost level, has too many fields, or has ``number`` in
        another wire type: protobuf decides about such messages.
    """
    view = memoryview(message)
    size, position = len(view), 0
    if size < SMALL_BYTES:
        return None
    kept: list[memoryview] = []
    contents: list[memoryview] = []
    try:
        for _ in range(MAX_FIELDS):
            if position == size:
                return b"".join(kept), contents
            start = position
            tag = view[position]
            position += 1
            if tag > 0x7F:
                tag, position = varint(view, start)
            wire_type = tag & 7
            if wire_type == _LENGTH:
                length = view[position]
                begin = position + 1
                if length > 0x7F:
                    length, begin = varint(view, position)
                position = begin + length
            elif wire_type == _VARINT:
                _, position = varint(view, position)
            elif wire_type in (_FIXED32, _FIXED64):
                position += 4 if wire_type == _FIXED32 else 8
            else:
                return None
            if position > size:
                return None
            if tag >> 3 != number:
                kept.append(view[start:position])
            elif wire_type == _LENGTH:
                contents.append(view[begin:position])
            else:
                return None
    except IndexError:
        return None
    return None


def field(number: int, contents: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return one length-delimited field whose content is the concatenation of ``contents``."""
    return [head(number, sum(map(len, contents))), *contents]


def head(number: int, length: int) -> bytes:
    """Return what stands before the ``length`` bytes of a length-delimited field."""
    return encode_varint(number << 3 | _LENGTH) + encode_varint(length)


@lru_cache(maxsize=512)
def encode_varint(value: int) -> bytes:
    """Encode an unsigned integer in groups of seven bits, lowest first.

    Tags and lengths are the same again and again.
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return the integer at ``position`` and the position after the integer.

    Raises:
        IndexError: it is cut off, or longer than ten bytes.
    """
    byte = view[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for index in range(1, 10):
        byte = view[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise IndexError
