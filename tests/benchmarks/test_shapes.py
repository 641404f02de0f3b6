"""The benchmark of random shapes: which shapes it draws, and a quick run with real servers."""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from benchmarks.shapes.__main__ import main
from benchmarks.shapes.models import CASES, DISTRIBUTIONS, LOG_NORMAL, UNIFORM
from benchmarks.shapes.phases import Churn, spread
from benchmarks.shapes.report import Measured


def quick(tmp_path: Path, servers: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Run the command; returns its exit status and what it wrote of the model."""
    file = tmp_path / "report.json"
    folders = ["--servers", str(servers), "--model-files", str(tmp_path / "models")]
    status = main(["--quick", *folders, "--json", str(file), "--threads", "1", *more])
    report = json.loads(file.read_text())
    return status, report["models"]["tiny"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_shapes_are_drawn_from_the_extents_of_every_axis(name: str, distribution: str) -> None:
    case = CASES[name]

    shapes = case.drawn(distribution, 2000, seed=1)

    assert shapes == case.drawn(distribution, 2000, seed=1)
    assert {rows for rows, *_ in shapes} == {1}
    for number, axis in enumerate(case.axes, 1):
        extents = [shape[number] for shape in shapes]
        assert set(extents) <= set(axis.extents)
        middle = {LOG_NORMAL: axis.usual, UNIFORM: (axis.least + axis.most) / 2}[distribution]
        assert median(extents) == pytest.approx(middle, rel=0.15)


@pytest.mark.parametrize("name", CASES)
def test_new_and_cheap_shapes_all_differ(name: str) -> None:
    case = CASES[name]

    new, cheap = case.new(64, seed=1), case.cheapest(2000, seed=1)

    assert len(set(new)) == len(new) == 64
    assert len(set(cheap)) == len(cheap) == 2000
    for _, *extents in (*new, *cheap):
        assert all(extent in axis.extents for extent, axis in zip(extents, case.axes, strict=True))


@pytest.mark.ci
def test_answers_that_are_wrong_fail_the_benchmark_and_show_whose_they_are(
    servers: Path, tmp_path: Path
) -> None:
    status, report = quick(
        tmp_path, servers, "--contenders", "thirty_lines_ort,off_by_one", "--clients", "2"
    )

    assert status == 1
    errors: dict[str, int] = {}
    for kind in ("first", "turns", "churn"):
        for row in report[kind]:
            errors.setdefault(row["contender"], 0)
            errors[row["contender"]] += row["errors"].get("WRONG_ANSWER", 0)
    assert errors["thirty_lines_ort"] == 0
    assert errors["off_by_one"] > 0


@pytest.mark.ci
def test_braid_and_thirty_lines_are_measured_in_every_phase(
    servers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status, report = quick(tmp_path, servers)

    assert status == 0
    assert report["left_out"] == report["ended"] == {}
    both = {"braid", "thirty_lines_ort"}
    first, cells, churn = (report[kind] for kind in ("first", "cells", "churn"))
    assert {row["contender"] for row in first} == both
    assert all(row["shapes"] == 6 for row in first)
    loads = {(cell["contender"], cell["distribution"], cell["clients"]) for cell in cells}
    assert loads == {(name, d, n) for name in both for d in DISTRIBUTIONS for n in (1, 4)}
    assert {row["contender"]: row["answered"] for row in churn} == dict.fromkeys(both, 40)
    for row in churn:
        assert [shapes for shapes, _ in row["memory_mib"]] == [0, *range(2, 41, 2), 40]
        assert set(row["neighbour_p99_us"]) == {"alone", "repeated", "new"}
    assert "ever new shapes" in capfd.readouterr().out


@pytest.mark.ci
def test_shapes_that_come_again_are_as_large_as_those_that_do_not() -> None:
    shapes = CASES["resnet18"].cheapest(2000, seed=1)

    few = [math.prod(shape) for shape in spread(shapes, 8)]

    assert len(set(few)) == 8
    assert mean(few) == pytest.approx(mean(map(math.prod, shapes)), rel=0.02)


def test_churn_is_measured_alone(servers: Path, tmp_path: Path) -> None:
    times = ("--limit", "1", "--settle", "0.1", "--neighbour-seconds", "0.2")
    status, report = quick(
        tmp_path, servers, "--contenders", "thirty_lines_ort", "--churn", "60", *times
    )

    assert status == 0
    assert report["first"] == report["turns"] == []
    (row,) = report["churn"]
    assert row["asked"] == row["answered"] == 60


@pytest.mark.ci
def test_phases_are_measured_alone_and_plans_of_an_earlier_run_serve_again(
    servers: Path, tmp_path: Path
) -> None:
    options = ["--contenders", "braid", "--stores", str(tmp_path / "stores"), "--clients", "1"]

    warm = ["--warm-up", "8", "--idle", "0.5"]

    status, report = quick(tmp_path, servers, *options, *warm, "--phases", "first")
    (store,) = (tmp_path / "stores").iterdir()
    schedules = {file: file.stat().st_ino for file in (store / "schedules").rglob("*.json")}
    status_again, again = quick(tmp_path, servers, *options, "--phases", "load")

    assert status == status_again == 0
    assert schedules
    assert all(file.stat().st_ino == inode for file, inode in schedules.items())
    assert report["first"]
    assert report["turns"] == report["churn"] == []
    assert again["turns"]
    assert again["first"] == again["churn"] == []


@pytest.mark.parametrize(("last_mib", "is_bad"), [(105.0, False), (115.0, True)])
def test_memory_that_grows_after_a_quarter_of_the_shapes_fails_churn(
    last_mib: float, is_bad: bool
) -> None:
    memory_mib = [(0, 50.0), (25, 100.0), (50, 100.0), (100, last_mib)]
    row = Churn("braid", asked=100, answered=100, memory_mib=memory_mib)

    assert Measured("tiny", is_stress=True, churn=[row]).is_bad == is_bad
    assert not Measured("tiny", churn=[row]).is_bad


@pytest.mark.skipif(find_spec("transformers") is not None, reason="transformers is installed")
def test_a_model_whose_package_is_missing_is_left_out_with_the_reason(
    servers: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    options = ["--servers", str(servers), "--model-files", str(tmp_path), "--json", str(file)]

    assert main(["--quick", "--models", "minilm", *options]) == 0

    assert "No module named 'transformers'" in json.loads(file.read_text())["left_out"]["minilm"]


def test_contenders_and_models_that_are_unknown_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option, reason in (
        (["--models", "gpt"], "no model gpt; there are bert_base"),
        (["--lengths", "fixed"], "no distribution fixed; there are log-normal"),
        (["--phases", "last"], "no phase last; there are first, load, shapes"),
        (["--contenders", "litserve"], "no peer named litserve; there are: braid"),
    ):
        with pytest.raises(SystemExit):
            main(option)
        assert reason in capsys.readouterr().err
