from pathlib import Path

import pytest

from tests.size import ROOMS, main


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
