"""The benchmark on a GPU, as far as it goes without one: order, turns, ratios, files."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config as inductor_config

from benchmarks.contender_process import ContenderProcess
from benchmarks.cuda import versions
from benchmarks.cuda.agenda import BRAID, EAGER, GRAPH, MAX_AUTOTUNE, PEERS, REDUCE_OVERHEAD, Budget
from benchmarks.cuda.clock import largest_error, times
from benchmarks.cuda.ours import OurPlan
from benchmarks.cuda.peers import fastest, frozen
from benchmarks.cuda.plan_files import Planned, write_plans
from benchmarks.cuda.record import CudaCase
from benchmarks.cuda.results import write
from benchmarks.cuda.run import continued
from benchmarks.cuda.turns import Setting, measure
from benchmarks.networks.network import Network
from braid.core.plan import sequential_plan
from braid.engine.cuda.backend import OnGpu
from braid.engine.cuda.driver.interface import ORIGIN
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.passes.specialise import specialise
from tests import ROOT
from tests.engine.cuda.graphs import bound, random_graph
from tests.engine.cuda.recording import RecordingDriver
from tests.engine.cuda.torch_2_11 import Torch211


@pytest.mark.parametrize(
    "other", [{}, {"device": "cuda:NVIDIA H100"}, {"precision": "tf32"}], ids=str
)
def test_runs_of_another_device_or_precision_are_not_mixed(
    other: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {"device": "cuda:NVIDIA H200", "precision": "fp32"}
    (tmp_path / "0.json").write_text("[1]")
    case = CudaCase("squeezenet", 1, gpu_ms={"braid lazy": [1.0]})
    write([case], environment, [], tmp_path)
    write_plans({("squeezenet", 1): Planned({"opara": tmp_path / "0.json"}, {})}, tmp_path)

    cases, plans = continued(tmp_path / "cuda.json", environment | other, tmp_path)

    assert cases == ([] if other else [case])
    assert len(plans) == len(cases)
    assert ("all is measured again" in capsys.readouterr().out) == bool(other)


ANSWERS = """
import json, sys
sys.stdin.readline()
print("ready")
print(json.dumps({"runs": ["a", "b"], "notes": {"a": {"streams": 2}}}))
sys.stdout.flush()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["run"] == "b":
        print(json.dumps({"error": "out of memory"}))
    else:
        print(json.dumps({"gpu_ms": [0.5] * asked["count"], "total_ms": [1.0] * asked["count"]}))
    sys.stdout.flush()
"""


def test_contenders_that_fail_are_noted_and_the_others_go_on(tmp_path: Path) -> None:
    commands = {
        BRAID: [sys.executable, "-c", ANSWERS],
        EAGER: [sys.executable, "-c", "raise SystemExit('no kernel image')"],
    }
    seen = CudaCase("squeezenet", 1)

    measure(seen, Setting(Budget(20.0), commands, tmp_path, turn_s=0.002))

    assert set(seen.gpu_ms) == {"braid a"}
    assert set(seen.gpu_ms["braid a"]) == {0.5}
    assert seen.notes["braid a"] == {"streams": 2}
    assert seen.failed[EAGER] == "no kernel image"
    assert seen.failed["braid b"] == "out of memory"


def test_contenders_that_there_was_no_time_for_have_not_failed(tmp_path: Path) -> None:
    unready = CudaCase("squeezenet", 1)
    commands = {EAGER: [sys.executable, "-c", "import time; time.sleep(600)"]}

    measure(unready, Setting(Budget(0.5), commands, tmp_path, turn_s=0.002))

    assert not unready.failed
    assert not unready.gpu_ms


LEFT_RUNNING = "import subprocess; subprocess.Popen(['sleep', '600']); print('ready', flush=True)"


@pytest.mark.timeout(120)
def test_a_contender_ends_with_what_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEFT_RUNNING]
    contender = ContenderProcess("compiled", command, tmp_path / "log", os.environ)
    assert contender.line() == "ready"

    contender.end()  # the reader ends when nobody holds the output any more


def test_a_plan_is_timed_by_both_clocks() -> None:
    template, weights = random_graph(seed=3, units=10)
    graph, constants = specialise(template, weights, template.inputs)
    driver = RecordingDriver()
    executor = CudaExecutor(driver)
    with torch.inference_mode():
        program = bound(graph, constants)
        ready = executor.prepare(program, sequential_plan(len(program.units)))
        inputs = {"x": np.ones((6, 6), np.float32)}
        waited: list[float] = []
        plan = OurPlan(OnGpu(executor, ready, ()), inputs, hold_up=waited.append)
        plan.warm_up()
        before = len(driver.operations)
        seen = times(plan, 3)

    streams = {o.stream for o in driver.operations[before:] if o.kind in ("launch", "replay")}
    assert streams == {driver.stream(ORIGIN)}, "what holds the device up is on the replays' stream"
    assert min(waited) > 0
    assert len(seen.gpu_ms) == len(seen.total_ms) == 3
    assert min(seen.gpu_ms) > 0


def test_errors_are_relative_to_the_largest_element() -> None:
    wanted = torch.tensor([4.0, -8.0])

    assert largest_error([torch.tensor([4.0, -7.0])], [wanted]) == 0.125
    assert largest_error([torch.tensor([math.nan, -8.0])], [wanted]) == math.inf


class Affine(torch.nn.Module):
    """2 x + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def draw_weights(self, _: object) -> None:
        with torch.no_grad():
            self.weight.fill_(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 1


IMAGE = Network("affine", Affine, lambda batch, _: (torch.ones(batch, 1, 2, 2),), ("x",), ("y",))


class Compiler:
    """torch.compile as far as it copies inputs: the CUDA graphs of its modes do, at every call."""

    def __init__(self) -> None:
        self.copies = 0

    def compile(self, model: torch.nn.Module, *, mode: str, dynamic: bool) -> Any:
        with_graphs = torch._inductor.list_mode_options(mode).get("triton.cudagraphs", False)

        def run(*inputs: torch.Tensor) -> torch.Tensor:
            if with_graphs:
                self.copies += 1
                inputs = tuple(x.clone() for x in inputs)
            result: torch.Tensor = model(*inputs)
            return result

        return run


@pytest.mark.parametrize("name", [GRAPH, REDUCE_OVERHEAD, MAX_AUTOTUNE])
def test_the_device_time_of_peers_holds_no_copies_of_inputs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler()
    monkeypatch.setattr(torch, "compile", compiler.compile)
    with Torch211().installed(monkeypatch), torch.no_grad():
        peer, notes = fastest(IMAGE, name, 1, "fp32", patience_s=60.0)
        before = compiler.copies
        peer.gpu_ms()
        copied = compiler.copies - before
        peer.staged[0].fill_(4.0)
        peer.total_ms()

    assert copied == 0
    assert notes["max_rel_error"] == 0.0
    assert torch.equal(peer.results[0], torch.full((1, 1, 2, 2), 9.0))


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_a_frozen_network_still_reads_its_inputs() -> None:
    x = torch.ones(1, 1, 2, 2)
    with torch.no_grad(), inductor_config.patch(freezing=False):
        function = frozen(Affine(), "default")
        first = function(x).clone()
        x.fill_(4.0)

        assert torch.equal(first, torch.full_like(x, 3.0))
        assert torch.equal(function(x), torch.full_like(x, 9.0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_versions_are_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.cuda.versions"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.strip() == "no NVIDIA GPU (or no torch that sees one) here"


def test_missing_packages_are_named(tmp_path: Path) -> None:
    listed = tmp_path / "packages.txt"
    listed.write_text("# a comment\npytest==9.2.0\nno-such-package==1.0\n")

    assert versions.missing(listed) == ["no-such-package"]


def test_the_page_of_a_session_names_files_and_contenders_that_there_are() -> None:
    page = (ROOT / "benchmarks/README.md").read_text()
    page = page[page.index("## Engine on a GPU") : page.index("## Library\n")]
    tests = re.findall(r"tests/[\w/]+\.py", page)
    for_a_gpu = [
        path.relative_to(ROOT).as_posix()
        for folder in ("tests/engine/cuda", "tests/service")
        for path in (ROOT / folder).rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text()
    ]

    assert set(for_a_gpu) == set(tests), "none is left out"
    for path in re.findall(r"`((?:benchmarks|engine|tests|docs)/[\w./-]+\.\w+)`", page):
        assert (ROOT / path).exists(), path
    left_out = {
        name for names in re.findall(r"--without ([\w,-]+)", page) for name in names.split(",")
    }
    assert left_out <= {*PEERS}
