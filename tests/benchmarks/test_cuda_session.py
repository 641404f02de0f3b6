"""The four parts of a session with a GPU: what they ask for, and how their steps end."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import engine
from benchmarks.cuda import session, versions
from benchmarks.cuda.agenda import BRAID, CNNS, GRAPH, MAX_AUTOTUNE, agenda
from benchmarks.cuda.session import PARTS, Places, Step, main, minutes, run
from tests import ROOT

PLACES = Places(Path("results/B"), Path("networks"), Path("results/A/cuda.json"))


def arguments(part: str, module: str) -> list[list[str]]:
    """Of the part's commands that run a module."""
    commands = [[*step.arguments(PLACES, step.seconds)] for step in PARTS[part]]
    return [command[2:] for command in commands if command[:2] == ["-m", module]]


def test_four_parts_take_23_minutes_and_no_command_ten() -> None:
    assert sum(map(minutes, PARTS)) == pytest.approx(23.0, abs=0.1)
    assert max(map(minutes, PARTS)) < 9.0
    page = (ROOT / "benchmarks/README.md").read_text()
    for part in PARTS:
        assert f"| {part} | {minutes(part):.0f} |" in page, "the page says another time"


@pytest.mark.parametrize(
    ("part", "networks", "with_autotune"),
    [("A", ["squeezenet"], False), ("B", [*CNNS], False), ("C", [*CNNS], True)],
)
def test_networks_are_measured_beside_both_baselines(
    part: str, networks: Sequence[str], with_autotune: bool
) -> None:
    steps, measured = [], list[str]()
    for command in arguments(part, "benchmarks.engine"):
        args = engine._parser().parse_args(command)
        assert args.device == "cuda"
        assert args.models == PLACES.models, "networks are made once"
        assert (args.earlier is not None) == (part != "A" and args.precision == "fp32")
        measured += args.networks
        steps += agenda(args.networks, args.batches, args.without)

    assert measured[: len(networks)] == networks
    assert {step.batch for step in steps} == {1}
    quick = {step.network for step in steps if {BRAID, GRAPH} <= set(step.contenders)}
    assert quick == set(networks), "Braid's plans hold its own sequential graph"
    tuned = {step.network for step in steps if MAX_AUTOTUNE in step.contenders}
    assert len(tuned) == (3 if with_autotune else 0)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("part", "folder", "least"), [("A", "tests/engine/cuda", 90), ("D", "tests/service", 5)]
)
def test_tests_are_there_and_end_after_eight_failures(part: str, folder: str, least: int) -> None:
    (command,) = arguments(part, "pytest")

    listed = subprocess.run(
        [sys.executable, "-m", "pytest", *command, "--collect-only"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )

    assert command[command.index("--maxfail") + 1] == "8"
    for_a_gpu = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text()
    }
    assert for_a_gpu == set(command[command.index("gpu") + 1 :]), "none is left out"
    found = re.search(r"(\d+)(?:/\d+)? tests? collected", listed.stdout)
    assert found is not None, listed.stdout[-2000:]
    assert int(found[1]) >= least


LEAVES_A_DAEMON = """
import os, pathlib, subprocess, sys, time
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("daemon").write_text(str(daemon.pid))
print("begun", flush=True)
time.sleep(600)
"""


def python(text: str, cwd: Path) -> session.Arguments:
    return lambda _, __: ["-c", f"import os; os.chdir({str(cwd)!r}); {text}"]


@pytest.mark.timeout(120)
def test_a_step_that_takes_too_long_ends_with_all_it_started_and_the_next_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = Places(tmp_path / "A", tmp_path, None)
    hangs = python(f"exec({LEAVES_A_DAEMON!r})", tmp_path)
    fails = python("raise SystemExit('no kernel image')", tmp_path)
    goes = python("print('measured')", tmp_path)
    seconds = 1.0
    while not (tmp_path / "daemon").exists():  # it may not come so far in a second
        seconds *= 2
        ended = run(
            [Step("hangs", seconds, hangs), Step("fails", 60, fails), Step("goes", 60, goes)],
            places,
        )

    assert ended == {"hangs": "stopped", "fails": "status 1", "goes": "over"}
    log = (places.out / "log").read_text()
    assert log.index("no kernel image") < log.rindex("measured")
    assert "== hangs: stopped after" in capsys.readouterr().out
    daemon = Path("/proc") / (tmp_path / "daemon").read_text()
    assert not daemon.exists()


@pytest.mark.timeout(120)
def test_time_that_a_step_does_not_take_is_left_to_the_next_one(tmp_path: Path) -> None:
    given: list[float] = []

    def noted(_: Places, seconds: float) -> Sequence[str]:
        given.append(seconds)
        return ["-c", ""]

    began = time.monotonic()
    run([Step("quick", 1000, noted), Step("next", 500, noted)], Places(tmp_path, tmp_path, None))

    assert given[1] >= 1500 - (time.monotonic() - began)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_part_says_so_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, *rest = PARTS["A"]
    monkeypatch.setitem(PARTS, "A", [replace(look, seconds=600.0), *rest])  # on a busy machine

    assert main(["A", "--out", str(tmp_path)]) == 0

    assert capsys.readouterr().out.strip() == "no NVIDIA GPU (or no torch that sees one) here"
    assert [path.name for path in (tmp_path / "A").iterdir()] == ["log"]


def test_a_part_goes_on_from_the_one_before_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Places] = []

    def note(_: object, places: Places, __: object) -> dict[str, str]:
        asked.append(places)
        return {}

    monkeypatch.setattr(session, "run", note)
    (tmp_path / "B").mkdir()
    (tmp_path / "B/cuda.json").write_text("{}")

    main(["C", "--out", str(tmp_path)])
    main(["B", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        main(["C", "--out", str(tmp_path), "--earlier", "nowhere/cuda.json"])

    assert [places.earlier for places in asked] == [tmp_path / "B/cuda.json", None]


def test_what_the_page_names_is_in_the_sources() -> None:
    page = (ROOT / "benchmarks/README.md").read_text()
    page = page[page.index("## Engine on a GPU") : page.index("## Served beside compared\n")]
    named = {name for code in re.findall(r"`([^`\n]+)`", page) for name in code.split()}
    folders = [ROOT / folder for folder in ("benchmarks", "engine", "scheduler", "tests", "docs")]
    text = "\n".join(
        path.read_text() for folder in folders for path in folder.rglob("*") if path.suffix == ".py"
    )
    words = set(re.findall(r"\w+", text))

    paths = {name for name in named if re.fullmatch(r"[\w./-]+/[\w.-]+\.\w+", name)}
    assert {path for path in paths if not path.startswith("FOLDER")} != set()
    for path in paths:
        assert path.startswith("FOLDER") or (ROOT / path).exists(), path
    figures = {name for name in named if re.fullmatch(r"[a-z]+(_[a-z]+)+", name)}
    assert len(figures) >= 5
    assert figures - words == set()


def test_missing_packages_are_named(tmp_path: Path) -> None:
    listed = tmp_path / "packages.txt"
    listed.write_text("# a comment\npytest==9.2.0\nno-such-package==1.0\n")

    assert versions.missing(listed) == ["no-such-package"]
