import re

import pytest

from tests import ROOT

TEXT = (ROOT / "docs/architecture.md").read_text()
PATHS = ("A request in ten steps", "A registration in ten steps")
ONE_ROOM = ("braid", "library", "compiler", "scheduler", "charts", "core", "client/braid_client")
HOUSES = ("server", "engine")
"""Folders whose packages are rooms."""


def section(text: str, heading: str) -> str:
    """Text under a heading of the second level."""
    match = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert match is not None, f'architecture.md has no heading "## {heading}"'
    return match[1]


def steps(text: str, heading: str) -> list[list[str]]:
    """Paths that each item of the ordered list under a heading names."""
    items = re.findall(
        r"^\d+\. (.*?)(?=^\d+\. |^\n|\Z)", section(text, heading), re.DOTALL | re.MULTILINE
    )
    return [re.findall(r"`((?:[\w.-]+/)+[\w.-]+)`", item) for item in items]


def rooms(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", section(text, "Rooms"), re.MULTILINE)


def test_a_list_is_read_and_a_heading_that_is_missing_is_named() -> None:
    text = (
        "## One\n\n1. `a/a.py`, `a.b` and\n   `b/c`\n2. none\n\n## Rooms\n| a |\n|---|\n| `x/y` |\n"
    )

    assert steps(text, "One") == [["a/a.py", "b/c"], []]
    assert rooms(text) == ["x/y"]
    with pytest.raises(AssertionError, match='no heading "## Three"'):
        steps(text, "Three")


@pytest.mark.parametrize("heading", PATHS)
def test_a_path_has_ten_steps_through_code_that_exists(heading: str) -> None:
    named = steps(TEXT, heading)

    assert len(named) == 10
    assert all(named), "a step names the code that does it"
    assert [path for step in named for path in step if not (ROOT / path).exists()] == []


def test_every_room_has_one_line() -> None:
    packages = [
        folder.parent.relative_to(ROOT).as_posix()
        for house in HOUSES
        for folder in (ROOT / house).glob("*/__init__.py")
    ]
    assert sorted(rooms(TEXT)) == sorted([*packages, *ONE_ROOM])
