"""Parts of serialised protobuf messages, counted on the wire before objects are made of them.

Two bytes on the wire are a message within a message, and hundreds in memory: 15 MiB of them held
the event loop up for half a minute and took 2.5 GB. Only the fields' heads are looked at
(https://protobuf.dev/programming-guides/encoding/). What is not well-formed is left to protobuf,
which refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from braid.core.errors import TooManyParts
from braid_client.wire_fields import varint

Read = TypeVar("Read")
Decode = Callable[[bytes], Read]

MAX_PARTS = 1 << 17
"""Parts of one message; protobuf makes objects of so many in ten milliseconds."""

MAX_NUMBERS = 1 << 22
"""Integers and truth values of one message that it packs into tensors."""

MAX_TEXT_BYTES = 2 << 20
"""Bytes of one text: errors quote names, and that takes ten times their bytes."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FEW_BYTES = 16
_FIXED_BYTES = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}


@dataclass(slots=True)
class _Level:
    """Fields of one type of message that are looked at, by number."""

    is_tensor: bool
    messages: dict[int, _Level] = field(default_factory=dict)
    packed: dict[int, int] = field(default_factory=dict)  # bytes of a number; 0: it depends
    texts: set[int] = field(default_factory=set)


def counted(decode: Decode[Read], message: Descriptor, tensor: Descriptor | None = None) -> Any:
    """``decode``, but raising TooManyParts; ``tensor``: messages that hold a tensor's numbers."""
    level = _level_of(message, tensor, {})

    def read(data: bytes) -> Read:
        if len(data) > 2 * MAX_PARTS:  # a part has two bytes
            _Count().add(data, level)
        return decode(data)

    return read


def _level_of(message: Descriptor, tensor: Descriptor | None, levels: dict[str, _Level]) -> _Level:
    level = levels.get(message.full_name)
    if level is None:
        level = levels[message.full_name] = _Level(message is tensor)
        for field in message.fields:
            if field.message_type is not None:
                level.messages[field.number] = _level_of(field.message_type, tensor, levels)
            elif field.type == FieldDescriptor.TYPE_STRING:
                level.texts.add(field.number)
            elif field.type != FieldDescriptor.TYPE_BYTES:
                level.packed[field.number] = _FIXED_BYTES.get(field.type, 0)
    return level


class _Count:
    """Parts that were seen of one message."""

    def __init__(self) -> None:
        self._parts = self._numbers = 0

    def add(self, data: bytes | memoryview, level: _Level) -> None:
        """Count the parts of a message; TooManyParts: more than MAX_PARTS, or its other limits."""
        left = [(memoryview(data), level)]
        while left:
            try:
                self._add_fields(*left.pop(), left)
            except IndexError:  # cut off: protobuf refuses it, but may read the rest first
                continue

    def _add_fields(
        self, view: memoryview, level: _Level, left: list[tuple[memoryview, _Level]]
    ) -> None:
        """Count one level of fields; adds the messages among them to ``left``."""
        messages, packed = level.messages, level.packed
        at, size = 0, len(view)
        while at < size:
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise TooManyParts(MAX_PARTS, "fields and messages")
            tag = view[at]
            at += 1
            if tag > 0x7F:
                tag, at = varint(view, at - 1)
            kind = tag & 7
            if kind == _LENGTH:
                length = view[at]
                at += 1
                if length > 0x7F:
                    length, at = varint(view, at - 1)
                begin, at, number = at, at + length, tag >> 3
                if length and number in messages:
                    left.append((view[begin:at], messages[number]))
                elif length and number in packed:
                    self._add_packed(view[begin:at], packed[number], level)
                elif length > MAX_TEXT_BYTES and number in level.texts:
                    raise TooManyParts(MAX_TEXT_BYTES, "bytes in a text", "shorten it")
            elif kind == _VARINT:
                at = at + 1 if view[at] < 0x80 else varint(view, at)[1]
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4

    def _add_packed(self, view: memoryview, number_bytes: int, level: _Level) -> None:
        """Count packed numbers: those of tensors apart, if protobuf has to look at them."""
        if number_bytes:
            count = 0 if level.is_tensor else len(view) // number_bytes
        elif len(view) <= _FEW_BYTES:
            count = len(view)
        else:
            count = int(np.count_nonzero(np.frombuffer(view, np.int8) >= 0))  # last bytes
        if level.is_tensor:
            self._numbers += count
        else:
            self._parts += count
        if self._parts > MAX_PARTS:
            raise TooManyParts(MAX_PARTS, "fields and messages")
        if self._numbers > MAX_NUMBERS:
            raise TooManyParts(MAX_NUMBERS, "integers or truth values", "send them raw")
