"""Dataclasses as JSON by their fields: every kind of field, and what is refused."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.core.json_form import MalformedJson, from_json, from_stored_json, to_json


class Colour(enum.Enum):
    """Two names with other values."""

    RED = "r"
    BLUE = "b"


@dataclass(frozen=True, slots=True)
class Part:
    """A dataclass inside another one."""

    name: str
    extent: int | str


@dataclass(frozen=True, slots=True)
class Other:
    """Another member of a union."""

    colour: Colour


@dataclass(frozen=True, slots=True)
class Whole:
    """One field of each kind."""

    content: bytes
    pairs: tuple[tuple[str, int], ...]
    numbers: list[float]
    by_name: Mapping[str, Part]
    maybe: Part | None
    either: Part | Other
    word: Literal["yes", "no"]
    derived: int = field(init=False, default=0)


PARTS = st.builds(Part, st.text(), st.integers() | st.text())
WHOLES = st.builds(
    Whole,
    st.binary(),
    st.lists(st.tuples(st.text(), st.integers())).map(tuple),
    st.lists(st.floats(allow_nan=False)),
    st.dictionaries(st.text(), PARTS),
    st.none() | PARTS,
    PARTS | st.builds(Other, st.sampled_from(Colour)),
    st.sampled_from(["yes", "no"]),
)


@given(whole=WHOLES)
def test_what_is_written_is_read_as_it_was(whole: Whole) -> None:
    assert from_json(Whole, json.loads(json.dumps(to_json(whole)))) == whole


GOOD = to_json(Whole(b"ab", (("a", 1),), [0.5], {}, None, Other(Colour.RED), "yes"))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("content", "no base64!", "is not base64"),
        ("pairs", [["a"]], "is not a list of 2"),
        ("pairs", {}, "is not a list"),
        ("numbers", [True], "is not a value of type float"),
        ("by_name", [], "is not an object"),
        ("maybe", {"name": "a", "extent": None}, "Part.extent: 'None' is none of"),
        ("either", {"type": "Other", "colour": "r"}, "is not a Colour"),
        ("either", {"name": "a", "extent": 1}, "is none of Part, Other"),
        ("word", "maybe", "is not one of"),
        ("word", [], "is not one of"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_field(name: str, value: Any, why: str) -> None:
    with pytest.raises(MalformedJson, match=rf"Whole\.{name}: .*{why}"):
        from_json(Whole, {**GOOD, name: value})


@dataclass(frozen=True, slots=True)
class Stored:
    """A record that one version writes and another one reads."""

    parts: tuple[Part, ...]
    size: int = 3


def test_fields_that_a_later_version_adds_are_ignored_in_stored_documents_only() -> None:
    later = {"parts": [{"name": "a", "extent": 1, "colour": "RED"}], "size": 4, "more": [None]}

    assert from_stored_json(Stored, later) == Stored((Part("a", 1),), 4)
    with pytest.raises(MalformedJson, match="unknown more"):
        from_json(Stored, later)


@pytest.mark.parametrize(
    "document", [{"parts": []}, {"parts": [{"name": "a"}], "size": 3}, {"parts": 1, "size": 3}]
)
def test_a_stored_document_lacks_no_field(document: dict[str, Any]) -> None:
    with pytest.raises(MalformedJson):
        from_stored_json(Stored, document)
