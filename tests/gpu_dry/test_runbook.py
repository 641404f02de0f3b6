"""Every command of a session with a GPU (benchmarks/README.md) runs, but for numbers and speed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.cuda.agenda import CNNS
from benchmarks.cuda.session import PARTS
from tests import ROOT

MINUTES = float(os.environ.get("DRY_MINUTES", "15"))
"""Of a part: this machine plans on CPUs that others may use, and measures launches one by one."""

Recipes = Callable[[Sequence[str]], Path]

pytestmark = pytest.mark.timeout(3600 + 60 * MINUTES)  # the first one makes recipes, too


def run(module: str, *arguments: str | Path) -> str:
    """What a command of the session prints."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p tests.gpu_dry.without_numbers"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all parts: B goes on from what A left there, and C from B."""
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module", params=sorted(PARTS))
def part(request: pytest.FixtureRequest, recipes: Recipes, out: Path) -> tuple[str, Path, str]:
    """A part, what it wrote, and what it printed."""
    options: list[str | Path] = ["--out", out, "--models", recipes(CNNS)]
    options += ["--minutes", str(MINUTES)]
    return request.param, out / request.param, run("cuda.session", request.param, *options)


def test_every_step_of_a_part_ends_by_itself_and_well(part: tuple[str, Path, str]) -> None:
    name, folder, printed = part
    log = (folder / "log").read_text(errors="replace")

    for step in PARTS[name]:
        assert re.search(rf"^== {re.escape(step.name)}: over ", printed, re.MULTILINE), printed
    assert not re.search(r"^(FAILED|ERROR) ", log, re.MULTILINE), log


def test_contenders_are_measured(part: tuple[str, Path, str]) -> None:
    name, folder, _ = part
    files = list(folder.rglob("cuda.json"))
    assert len(files) == {"A": 1, "B": 1, "C": 2, "D": 0}[name]
    for file in files:
        cases = json.loads(file.read_text())["cases"]
        assert any(case["gpu_ms"] for case in cases)
        for case in cases:
            failed = case["failed"].values()
            assert [why for why in failed if not re.search("too long|no answer within", why)] == []
            plans = [name for name in case["notes"] if name.startswith("braid ")]
            assert [case["notes"][name]["eager_because"] for name in plans] == [""] * len(plans)
