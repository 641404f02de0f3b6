"""Dataclasses as JSON and back, by the types of their fields: no class writes its own pair.

    to_json(value)                   ──> dicts, lists, text, numbers
    from_json(kind, document)        ──> a value of ``kind``, or MalformedJson
    from_stored_json(kind, document) ──> the same, of a file that another version may have written

    dataclass             {"field": ..., ...}; of a union of dataclasses also "type": class name
    tuple, list           list                  mapping with text keys     dict
    enum                  name of the member    bytes                      base64
    Path                  text                  Any                        as it is, JSON already

Reading refuses fields that are missing (also those with a default) and values of another type, and
in messages fields that a class does not have; in stored documents it ignores those. Types whose
JSON form is stored have a pair of their own (``use_own_form``).
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")
Convert = Callable[[Any], Any]

_OWN_FORMS: dict[type, tuple[Convert, Convert]] = {}
_SCALARS = (bool, int, float, str)


class MalformedJson(ValueError):
    """A JSON document is not of the type that was to be read; the message names the field."""


def use_own_form(kind: type[T], write: Callable[[T], Any], read: Callable[[Any], T]) -> None:
    """Let values of ``kind`` be written and read by functions of their own."""
    _OWN_FORMS[kind] = write, read


def to_json(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    document: dict[str, Any] = _writer(kind)(value)
    return document


def to_tagged_json(value: Any) -> dict[str, Any]:
    """As ``to_json``, with the name of the class: the form of a member of a union."""
    kind: Any = type(value)
    return {"type": kind.__name__, **_writer(kind)(value)}


@typing.overload
def from_json(kind: type[T], document: Any) -> T: ...


@typing.overload
def from_json(kind: Any, document: Any) -> Any: ...


def from_json(kind: Any, document: Any) -> Any:
    """Read a dataclass or a union of them. Raises MalformedJson, or a BraidError of the class."""
    return _reader(kind)(document)


def from_stored_json(kind: type[T], document: Any) -> T:
    """As ``from_json``, of a stored document: unknown fields are ignored."""
    any_kind: Any = kind
    value: T = _reader(any_kind, is_stored=True)(document)
    return value


@cache
def _writer(kind: Any) -> Convert:
    if kind in _OWN_FORMS:
        return _OWN_FORMS[kind][0]
    if dataclasses.is_dataclass(kind):
        return _dataclass_writer(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_writer([part for part in arguments if part is not types.NoneType])
    if origin is tuple and arguments[-1] is not ...:
        writers = [_writer(part) for part in arguments]
        return lambda value: [write(part) for write, part in zip(writers, value, strict=True)]
    if origin in (tuple, list, Sequence):
        item = _writer(arguments[0])
        return list if item is _unchanged else lambda value: [item(v) for v in value]
    if origin in (dict, Mapping):
        item = _writer(arguments[1])
        return lambda value: {key: item(part) for key, part in value.items()}
    if kind is bytes:
        return lambda value: base64.b64encode(value).decode()
    if kind is Path:
        return str
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value: value.name
    return _unchanged


def _unchanged(value: Any) -> Any:
    return value


def _dataclass_writer(kind: Any) -> Convert:
    fields = {name: _writer(hint) for name, hint in _hints(kind).items()}
    converted = [
        (name, write_field) for name, write_field in fields.items() if write_field is not _unchanged
    ]

    def write(value: Any) -> dict[str, Any]:
        document = {name: getattr(value, name) for name in fields}
        for name, convert in converted:
            document[name] = convert(document[name])
        return document

    return write


def _union_writer(members: Sequence[Any]) -> Convert:
    if len(members) > 1:
        tagged = any(map(dataclasses.is_dataclass, members))
        return to_tagged_json if tagged else _unchanged
    write = _writer(members[0])
    return lambda value: None if value is None else write(value)


@cache
def _reader(kind: Any, *, is_stored: bool = False) -> Convert:
    if kind in _OWN_FORMS:
        return _OWN_FORMS[kind][1]
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind, is_stored=is_stored)
    inner = partial(_reader, is_stored=is_stored)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_reader(arguments, inner)
    if origin is Literal:
        return _checked(lambda value: value in arguments, f"one of {arguments}")
    if origin is tuple and arguments[-1] is not ...:
        return _row_reader([inner(argument) for argument in arguments])
    if origin in (tuple, list, Sequence):
        make, item = list if origin is list else tuple, inner(arguments[0])
        return lambda value: make(map(item, _checked_list(value)))
    if origin in (dict, Mapping):
        read = inner(arguments[1])
        return lambda value: {name: read(v) for name, v in _checked_object(value).items()}
    if kind is bytes:
        return _read_bytes
    if kind is Path:
        text = _reader(str)
        return lambda value: Path(text(value))
    if kind is Any:
        return _unchanged
    if isinstance(kind, type) and issubclass(kind, Enum):
        name = _checked(lambda value: value in kind.__members__, f"a {kind.__name__}")
        return lambda value: kind[name(value)]
    return _scalar_reader(kind)


def _scalar_reader(kind: Any) -> Convert:
    assert kind in _SCALARS, f"{kind} has no JSON form"
    types_ = (int, float) if kind is float else (kind,)

    def read(value: Any) -> Any:  # on the way of each inference: no call inside
        if type(value) in types_:
            return value
        raise MalformedJson(f"{str(value)[:80]!r} is not a value of type {kind.__name__}")

    return read


def _checked(fits: Callable[[Any], bool], what: str) -> Convert:
    def read(value: Any) -> Any:
        try:
            is_right = fits(value)
        except TypeError:  # not hashable
            is_right = False
        if not is_right:
            raise MalformedJson(f"{str(value)[:80]!r} is not {what}")
        return value

    return read


_checked_list = _checked(lambda value: isinstance(value, list), "a list")
_checked_object = _checked(lambda value: isinstance(value, dict), "an object")


def _row_reader(items: Sequence[Convert]) -> Convert:
    row = _checked(
        lambda v: isinstance(v, list) and len(v) == len(items), f"a list of {len(items)}"
    )
    return lambda value: tuple(item(v) for item, v in zip(items, row(value), strict=True))


def _read_bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError) as error:
        raise MalformedJson(f"{str(value)[:80]!r} is not base64") from error


def _union_reader(members: Sequence[Any], inner: Convert) -> Convert:
    others = [inner(member) for member in members if member is not types.NoneType]
    if len(others) == 1:
        return lambda value: None if value is None else others[0](value)
    dataclass_members: list[Any] = [
        member for member in members if dataclasses.is_dataclass(member)
    ]
    classes = {member.__name__: _dataclass_reader(member, {"type"}) for member in dataclass_members}

    def read_tagged(value: Any) -> Any:
        if value is None and types.NoneType in members:
            return None
        if not isinstance(value, dict) or value.get("type") not in classes:
            raise MalformedJson(f"{str(value)[:80]!r} is none of {', '.join(classes)}")
        return classes[value["type"]](value)

    def read_scalar(value: Any) -> Any:
        if type(value) not in members:
            raise MalformedJson(f"{str(value)[:80]!r} is none of {members}")
        return value

    return read_tagged if classes else read_scalar


def _dataclass_reader(
    kind: Any, tags: Set[str] = frozenset(), *, is_stored: bool = False
) -> Convert:
    readers = {name: _reader(hint, is_stored=is_stored) for name, hint in _hints(kind).items()}
    wanted = readers.keys() | tags

    def read(document: Any) -> Any:
        if not isinstance(document, dict):
            raise MalformedJson(f"{kind.__name__}: {str(document)[:80]!r} is not an object")
        if document.keys() != wanted and not (is_stored and document.keys() >= wanted):
            raise MalformedJson(f"{kind.__name__}: {_difference(document.keys(), wanted)}")
        values, name = {}, ""
        try:
            for name, convert in readers.items():
                values[name] = convert(document[name])
        except MalformedJson as error:
            raise MalformedJson(f"{kind.__name__}.{name}: {error}") from None
        return kind(**values)

    return read


def _difference(names: Set[str], wanted: Set[str]) -> str:
    missing, unknown = wanted - names, names - wanted
    parts = [f"missing {', '.join(sorted(missing))}"] if missing else []
    if unknown:
        parts.append(f"unknown {', '.join(sorted(map(str, unknown)))}")
    return "; ".join(parts)


def _hints(kind: Any) -> dict[str, Any]:
    """Types of the fields that ``__init__`` takes."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
