"""The two paths through the code that docs/architecture.md lists, file by file."""

from __future__ import annotations

import re

import pytest

from tests import ROOT

PAGE = ROOT / "docs/architecture.md"
HEADINGS = {
    "An Infer tensor, file by file": 30,
    "From RegisterModel to the promoted plan, file by file": 60,
}
"""Heading of a path, and how many files it may lead through."""


def listed(text: str, heading: str) -> list[str]:
    """Paths that begin the items of the ordered list under a heading."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found is not None, f'{PAGE.name} has no heading "## {heading}"'
    items = re.findall(r"^\d+\. +(.*)$", found[1], re.MULTILINE)
    begun = [re.match(r"`([^`]+)`", item) for item in items]
    strange = [item for item, path in zip(items, begun, strict=True) if path is None]
    assert strange == [], "an item begins with a path in backticks"
    return [path[1] for path in begun if path is not None]


def test_a_list_is_read_and_a_heading_that_is_missing_is_named() -> None:
    text = "## One\n\n1. `a.py`: first,\n   `b.py` beside it\n2. `c/d.py`\n\n## Two\n1. `e.py`\n"

    assert listed(text, "One") == ["a.py", "c/d.py"]
    assert listed(text, "Two") == ["e.py"]
    with pytest.raises(AssertionError, match='no heading "## Three"'):
        listed(text, "Three")
    with pytest.raises(AssertionError, match="begins with a path"):
        listed("## One\n1. see `a.py`\n", "One")


@pytest.mark.parametrize(("heading", "most"), HEADINGS.items())
def test_a_path_leads_through_few_files_that_exist(heading: str, most: int) -> None:
    text = PAGE.read_text()
    paths = listed(text, heading)

    assert 1 < len(paths) <= most
    assert len(set(paths)) == len(paths), "a file is listed once"
    assert [path for path in paths if not (ROOT / path).is_file()] == []
