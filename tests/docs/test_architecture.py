"""Pages against the code: rooms, owners, budgets of lines."""

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.size import ROOMS, main

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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Rooms of one line each; ``core`` and ``tests/core`` have three."""
    for room in (*ROOMS, "tests/core"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "a.py").write_text("x = 1\n" * (3 if room.endswith("core") else 1))
    (tmp_path / "client/wire_pb2.py").write_text("x = 1\n" * 99)
    (tmp_path / "tests/conftest.py").write_text("x = 1\n" * 2)
    return tmp_path


def budget(core: int, tests_core: int) -> str:
    rooms = "\n".join(f"{room} = 1" for room in ROOMS if room != "core")
    return f"[product]\ncore = {core}\n{rooms}\n[tests]\ncore = {tests_core}\ntests = 2\n"


def test_rooms_within_their_budgets_pass(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "tests/size.toml").write_text(budget(3, 3))

    assert main(checkout) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert f"product  together            {len(ROOMS) + 2} of" in out


@pytest.mark.parametrize(
    ("core", "tests_core", "said"),
    [(1, 3, "product core: 3 lines, 2 over"), (3, 2, "tests core: 3 lines, 1 over")],
)
def test_a_room_over_its_budget_fails_and_says_by_how_much(
    checkout: Path, capsys: pytest.CaptureFixture[str], core: int, tests_core: int, said: str
) -> None:
    (checkout / "tests/size.toml").write_text(budget(core, tests_core))

    assert main(checkout) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)
    assert "record in docs/decisions" in line
