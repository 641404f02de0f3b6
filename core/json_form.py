"""Dataclasses as JSON and back, by the types of their fields; msgspec does the work.

    to_json(value)             ──> dicts, lists, text, numbers
    from_json(kind, document)  ──> a value of ``kind``, or MalformedJson

    dataclass, Mapping   object, keys as text     bytes   base64
    tuple, NamedTuple    list                     Path    text
    Tagged               object with "type", the name of its class

Reading fills fields that are missing by their defaults and refuses values of another type. In
dataclasses it ignores unknown fields, which another version may have written; messages travel
between processes of one version, and have none. Infinities and NaN stay numbers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


class MalformedJson(ValueError):
    """A JSON document is not of the type that was to be read; the message names the field."""


class Tagged(msgspec.Struct, frozen=True, tag=True, tag_field="type", forbid_unknown_fields=True):
    """Base of messages between processes: unions of them are told apart by their names."""


def to_json(value: Any) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(value, str_keys=True, enc_hook=plain)
    return document


@overload
def from_json(kind: type[T], document: Any) -> T: ...


@overload
def from_json(kind: Any, document: Any) -> Any: ...


def from_json(kind: Any, document: Any) -> Any:
    """Read a value of a type. Raises MalformedJson, or a BraidError of the class."""
    try:
        return msgspec.convert(document, kind, str_keys=True, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise MalformedJson(str(error)) from None


def plain(value: Any) -> Any:
    """Value of a type that msgspec knows in place of one that it does not know."""
    for kind in (str, int, float):  # versions of torch, numbers of numpy
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value)} has no JSON form")


def _read(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"{kind} has no JSON form")
