"""The zoo: its networks, the whole command on small ones, its tables and its stored counts."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.zoo.__main__ import QUICK, main
from benchmarks.zoo.counts import STORED, Counts, read_counts, worse, write_counts
from benchmarks.zoo.engines import Timed
from benchmarks.zoo.files import ZOO
from benchmarks.zoo.records import Record
from benchmarks.zoo.report import text
from benchmarks.zoo.styles import STYLES

PLAN = {
    "planner": "lazy-ios",
    "candidates": {"sequential": 4.0, "lazy-ios": 3.0, "regions": 2.5, "onnxruntime": 2.0},
    "refused": {"openvino": "outputs differ"},
    "fallbacks": [],
    "units": {"own": 7},
    "kinds_ms": {"aten.linear": 2.0, "aten.softmax": 0.5},
    "choices": {},
    "digest": "",
}


def record(name: str, family: str = "detectors", **ms: float) -> Record:
    timed = Timed(1, {"serves": 4.0, "sequential": 4.0, "onnxruntime": 2.0, **ms}, plan=PLAN)
    return Record(name, family, imports={"onnx": "parts"}, timed={"1": timed})


def run(tmp_path: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Run the command; returns its exit status and what it wrote of each network."""
    file = tmp_path / "zoo.json"
    folders = ["--folder", str(tmp_path / "zoo"), "--json", str(file)]
    brief = ["--rounds", "1", "--turn", "0.001", "--rows", "1", "--planner", "sequential"]
    status = main([*brief, *folders, *more])
    return status, json.loads(file.read_text())["networks"]


def test_the_zoo_has_sixty_architectures_and_twenty_styles() -> None:
    assert len(STYLES) >= 20
    assert len(ZOO) - len(STYLES) >= 60
    assert set(QUICK) < set(ZOO)
    assert set(read_counts(STORED)) == set(QUICK)


@pytest.mark.ci
@pytest.mark.parametrize("name", STYLES)
@torch.no_grad()
def test_a_style_gives_numbers_of_a_usual_size_that_differ_between_rows(name: str) -> None:
    module = STYLES[name].module()

    outputs = module(**STYLES[name].inputs(module, 3))

    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        largest = float(output.abs().max())
        assert 1e-6 < largest < 1e4
        assert float((output[0] - output[1]).abs().max()) > 1e-6 * largest


@pytest.mark.ci
def test_networks_are_imported_timed_bounded_and_served(
    servers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--servers", str(servers), "--contenders", "braid,thirty_lines_ort"]
    phases = ["--phases", "import,engines,bound,served", "--seconds", "0.05"]

    status, networks = run(tmp_path, "softmax", "crnn", *options, *phases)

    assert status == 0
    assert list(networks) == ["crnn", "softmax"]
    for network in networks.values():
        assert network["failed"] == {}
        assert network["imports"]["onnx"].startswith("parts")
        assert network["imports"]["pt2"].startswith("parts")
        timed = network["timed"]["1"]
        assert set(timed["ms"]) == {"serves", "sequential", "onnxruntime", "openvino"}
        assert all(error < 1e-3 for error in timed["errors"].values())
        assert timed["plan"]["units"]["own"] > 0
        assert network["least_ms"] > 0
        assert set(network["served"]["p50_ms"]) == {"braid", "thirty_lines_ort"}
        assert network["served"]["errors"] == {"braid": 0, "thirty_lines_ort": 0}
    output = capfd.readouterr().out
    assert "batch 1: speed beside the better runtime" in output
    assert "text in images" in output


@pytest.mark.ci
def test_a_later_run_goes_on_and_half_precision_is_another_network(tmp_path: Path) -> None:
    run(tmp_path, "perceptron", "--phases", "import,engines")
    _, before = run(tmp_path, "perceptron", "--phases", "import", "--resume")

    status, networks = run(
        tmp_path, "perceptron", "--phases", "engines", "--types", "fp16", "--resume"
    )

    assert status == 0
    assert networks["perceptron"] == before["perceptron"]
    assert {"serves", "onnxruntime"} <= set(networks["perceptron_fp16"]["timed"]["1"]["ms"])


@pytest.mark.skipif(find_spec("transformers") is not None, reason="transformers is installed")
def test_a_network_whose_package_is_missing_is_left_out_with_the_reason(tmp_path: Path) -> None:
    status, networks = run(tmp_path, "bert", "--phases", "import")

    assert status == 0
    assert "No module named 'transformers'" in networks["bert"]["not_exported"]
    assert (
        worse([Record("bert", "text encoders", not_exported=networks["bert"]["not_exported"])], {})
        == []
    )


def test_tables_give_means_by_family_the_worst_first_and_who_is_refused() -> None:
    slow, fast = record("slow"), record("fast", serves=1.0)
    whole = Record("other", "sound", imports={"onnx": "whole: an operator", "pt2": "refused: big"})

    lines = text([slow, fast, whole], [1]).splitlines()

    (family,) = [line.split() for line in lines if line.strip().startswith("detectors")]
    assert family == ["detectors", "2", "0.50", "0.67", "0.80", "1.00", "-", "0.50"]
    worst = [line.split()[0] for line in lines if "own units:" in line]
    assert worst == ["slow", "fast"]
    assert "candidates refused: openvino 2; fallbacks: 0" in lines
    assert "  other as onnx is whole: an operator" in lines
    assert "  other as pt2 is refused: big" in lines


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"imports": {"onnx": "whole: an operator"}}, "one as onnx: whole, stored parts"),
        ({"refused": {"lazy-ios": "errs"}}, "one: candidates of own are refused"),
        ({"fallbacks": ["a plan"]}, "one: 1 fallbacks, stored 0"),
        ({"candidates": {"sequential": 4.0}}, "one: onnxruntime could not serve"),
        ({"serves": 40.0}, "one: speed 0.05, at least 0.2 is asked"),
    ],
)
def test_what_is_worse_than_stored_is_a_line_each(
    change: dict[str, Any], line: str, tmp_path: Path
) -> None:
    file = tmp_path / "counts.json"
    write_counts(file, [record("one")])
    stored = read_counts(file)
    assert stored == {"one": Counts.of(record("one"))}

    now = record("one", **({"serves": change["serves"]} if "serves" in change else {}))
    now.imports = change.get("imports", now.imports)
    now.timed["1"] = replace(now.timed["1"], plan={**PLAN, **change})

    assert worse([record("one"), record("two")], stored) == []
    assert line in worse([now], stored)


def test_names_that_are_unknown_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option, reason in (
        (["brt"], "no network or family brt; there are cnn"),
        (["--phases", "last"], "no phase last; there are import, engines, bound, served"),
        (["--types", "fp8"], "no type fp8; there are fp32, fp16, bf16"),
        (["--contenders", "nobody"], "no peer named nobody"),
    ):
        with pytest.raises(SystemExit):
            main(option)
        assert reason in capsys.readouterr().err
