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

MINUTES = float(os.environ.get("DRY_MINUTES", "30"))
"""Of a part: this machine plans on CPUs that others may use, and measures launches one by one."""


@pytest.fixture(scope="module", params=sorted(PARTS))
def part(
    request: pytest.FixtureRequest,
    recipes: Callable[[Sequence[str]], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path, str]:
    """A part, what it wrote, and what it printed."""
    out = tmp_path_factory.mktemp("session")
    command = [sys.executable, "-m", "benchmarks.cuda.session", request.param, "--out", str(out)]
    command += ["--models", str(recipes(CNNS)), "--minutes", str(MINUTES)]
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p tests.gpu_dry.without_numbers"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return request.param, out / request.param, done.stdout + done.stderr


def test_every_step_of_a_part_ends_by_itself_and_well(part: tuple[str, Path, str]) -> None:
    name, out, printed = part
    log = (out / "log").read_text(errors="replace")

    for step in PARTS[name]:
        assert re.search(rf"^== {re.escape(step.name)}: over ", printed, re.MULTILINE), printed
    assert not re.search(r"^(FAILED|ERROR) ", log, re.MULTILINE), log


def test_questions_are_answered_to_the_end(part: tuple[str, Path, str]) -> None:
    _, out, _ = part
    for file in out.rglob("cuda_questions.json"):
        for answer in json.loads(file.read_text())["answers"]:
            assert answer["rows"], answer
            assert answer["problem"] == "", answer


def test_contenders_are_measured(part: tuple[str, Path, str]) -> None:
    _, out, _ = part
    for file in out.rglob("cuda.json"):
        cases = json.loads(file.read_text())["cases"]
        assert any(case["gpu_ms"] for case in cases)
        for case in cases:
            assert {who: why for who, why in case["failed"].items() if "too long" not in why} == {}
            plans = [name for name in case["notes"] if name.startswith("braid ")]
            assert [case["notes"][name]["eager_because"] for name in plans] == [""] * len(plans)
