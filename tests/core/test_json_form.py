import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.core.errors import InvalidArtefact
from braid.core.json_form import MalformedJson, Tagged, from_json, to_json


class Row(NamedTuple):
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    extent: int | str

    def __post_init__(self) -> None:
        if self.name == "refused":
            raise InvalidArtefact("a part may not be named so")


class One(Tagged, frozen=True):
    part: Part


class Other(Tagged, frozen=True):
    size: int = 3


@dataclass(frozen=True, slots=True)
class Whole:
    content: bytes
    pairs: tuple[tuple[str, int], ...]
    rows: tuple[Row, ...]
    numbers: tuple[float, ...]
    by_name: Mapping[str, Part]
    maybe: Part | None
    either: One | Other
    word: Literal["yes", "no"]
    place: Path
    size: int = 3


PARTS = st.builds(Part, st.text().filter(lambda name: name != "refused"), st.integers() | st.text())
WHOLES = st.builds(
    Whole,
    st.binary(),
    st.lists(st.tuples(st.text(), st.integers())).map(tuple),
    st.lists(st.builds(Row, st.text(), st.integers())).map(tuple),
    st.lists(st.floats(allow_nan=False)).map(tuple),
    st.dictionaries(st.text(), PARTS),
    st.none() | PARTS,
    st.builds(One, PARTS) | st.builds(Other, st.integers()),
    st.sampled_from(["yes", "no"]),
    st.sampled_from([Path("/a/b"), Path("c")]),
)


@given(whole=WHOLES)
def test_what_is_written_is_read_as_it_was(whole: Whole) -> None:
    assert from_json(Whole, json.loads(json.dumps(to_json(whole)))) == whole


WHOLE = Whole(
    b"ab", (("a", 1),), (Row("r", 2),), (0.5,), {}, None, Other(), "yes", Path("/a"), size=4
)
GOOD = json.loads(json.dumps(to_json(WHOLE)))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("content", "no base64!", "Invalid base64"),
        ("pairs", [["a"]], "`array` of length 2, got 1"),
        ("pairs", {}, "Expected `array`"),
        ("rows", [["a", 1, 2]], "`array` of length 2, got 3"),
        ("numbers", [True], "Expected `float`, got `bool`"),
        ("by_name", [], "Expected `object`"),
        ("maybe", {"name": "a", "extent": None}, r"Expected `int \| str`, got `null`"),
        ("either", {"type": "Part", "size": 1}, "Invalid value 'Part'"),
        ("either", {"type": "Other", "size": 1, "more": 2}, "unknown field `more`"),
        ("either", {"size": 1}, "missing required field `type`"),
        ("word", "maybe", "Invalid enum value 'maybe'"),
        ("word", [], "Expected `str`"),
        ("place", 7, "not '?int"),
        ("size", "3", "Expected `int`, got `str`"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_field(name: str, value: Any, why: str) -> None:
    with pytest.raises(MalformedJson, match=rf"{why}.*\$\.{name}"):
        from_json(Whole, {**GOOD, name: value})


def test_a_field_that_is_missing_has_its_default_or_is_named() -> None:
    del (shorter := dict(GOOD))["size"]

    assert from_json(Whole, shorter).size == 3
    with pytest.raises(MalformedJson, match="missing required field `word`"):
        from_json(Whole, {name: value for name, value in GOOD.items() if name != "word"})


def test_fields_that_a_later_version_adds_are_ignored_in_dataclasses() -> None:
    part = {"name": "a", "extent": 1, "colour": "RED"}

    assert from_json(Whole, {**GOOD, "maybe": part, "more": [None]}).maybe == Part("a", 1)


def test_a_class_that_refuses_values_raises_its_own_error() -> None:
    with pytest.raises(InvalidArtefact, match="may not be named so"):
        from_json(Whole, {**GOOD, "maybe": {"name": "refused", "extent": 1}})


class Version(str):
    """As torch states its own."""

    __slots__ = ()


def test_numbers_that_json_lacks_and_classes_of_text_and_numbers_are_written() -> None:
    assert to_json({"torch": Version("2.13")}) == {"torch": "2.13"}
    numbers = {"a": np.float64(0.5), "b": math.inf, "c": math.nan}

    text = json.dumps(to_json(MappingProxyType(numbers)))

    assert text == '{"a": 0.5, "b": Infinity, "c": NaN}'
    read = from_json(dict[str, float], json.loads(text))
    assert (read["a"], read["b"], math.isnan(read["c"])) == (0.5, math.inf, True)
