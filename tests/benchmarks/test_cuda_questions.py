"""The questions to a GPU, without one: on a device that only records, and on what processes say."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from benchmarks.cuda_questions import __main__ as command
from benchmarks.cuda_questions import costs, device, kernels, plans
from benchmarks.cuda_questions.__main__ import NO_GPU, listen, main
from benchmarks.cuda_questions.answers import Answer, Row, document, table
from benchmarks.cuda_questions.lab import Job, Lab
from benchmarks.cuda_questions.questions import QUESTIONS
from braid.engine.cuda.backend import CudaBackend
from braid.engine.cuda.kernels.candidates import CudaKernels
from braid.engine.cuda.stage_timer import CudaStageTimer, SlopeOptions
from braid.engine.passes.specialise import specialise
from braid.engine.timing.samples import TimerOptions
from tests.engine.cuda.graphs import RegistryKernels, bound, random_graph
from tests.engine.cuda.recording import RecordingDriver
from tests.engine.cuda.serving import GPU


@pytest.fixture
def lab() -> Iterator[Lab]:
    with torch.inference_mode():
        yield Lab(RecordingDriver(), hold_up=lambda us: None)


def test_side_by_side_is_faster_than_in_a_row(lab: Lab) -> None:
    jobs = [Job(torch.relu, [lab.driver.empty((4,), torch.float32).zero_()])]

    assert lab.branches_us([jobs] * 4) < lab.branches_us([jobs * 4])
    assert lab.slope_us([jobs]) > 0


def test_questions_about_the_device_find_rows(lab: Lab) -> None:
    (identity,) = device.facts(GPU)
    two_spins = next(device.overlap(lab))
    one_node, forked = next(costs.graph_costs(lab)), next(costs.fork_costs(lab))
    (pace,) = costs.pace_steadiness(lab, size=2)

    assert identity.figures["driver"] == GPU.driver
    assert float(two_spins.figures["times_as_fast"] or 0) > 1
    assert (one_node.what, forked.what) == ("1 nodes", "fork to 2 streams and join")
    assert pace.figures["steady"] == 1.0


def test_kernels_are_compared_with_fp64_over_poisoned_outputs(lab: Lab) -> None:
    small = kernels.Convolution("small", (4, 6), (4, 4, 1, 1))
    source = CudaKernels(lab.driver.device, compile_=None)
    bench = kernels.bench_of(lab, source, small, "fp32")
    (registry,) = [
        kernel
        for kernel in source.variants(bench.unit, bench.graph, bench.constants, bench.packed)
        if kernel.variant == "registry"
    ]

    seen = kernels.measured(lab, bench, registry)

    assert min(seen.us, seen.first_run_ms) > 0
    assert 0 < seen.error < 1e-5


def test_what_a_library_refuses_is_said(lab: Lab) -> None:
    small = kernels.Convolution("small", (4, 6), (4, 4, 3, 3))

    row = next(kernels.convolutions(lab, [small]))  # there is no cuDNN for the CPU

    assert "conv-relu.nchw" in str(row.figures["refused"])
    assert 0 < float(row.figures["error"] or 0) < 1e-5


@pytest.mark.ci
def test_whole_plans_are_compared_with_sums_and_replayed_over_nan() -> None:
    template, weights = random_graph(seed=3, units=12)
    graph, constants = specialise(template, weights, template.inputs)
    with torch.inference_mode():
        driver = RecordingDriver()
        timer = CudaStageTimer(driver, 1 << 20, TimerOptions(), SlopeOptions(pace_size=8))
        backend = CudaBackend(driver, GPU, lambda _: RegistryKernels(), timer, host_threads=1)
        program = bound(graph, constants)
        *each, ranking = plans.sums_and_wholes(backend, program)
        released, replays, kept = islice(plans.memory(backend, program), 3)

    assert len(each) == len(plans.PLANNERS)
    assert 0 < float(each[0].figures["sum_over_whole"] or 0) <= 1
    assert str(ranking.figures["by_sum"]).count("<") == len(plans.PLANNERS) - 1
    assert released.figures["eager_because"] == ""
    assert set(kept.figures) == {"peak_mib", "pool_mib"}
    blocks = [math.ceil(float(row.figures["peak_mib"] or 0) * 2048) for row in (kept, released)]
    assert blocks[0] >= blocks[1], "both count the inputs"
    assert replays.figures == {"bitwise_equal": True, "finite": True}


PROCESS = """
from benchmarks.cuda_questions.answers import Row
print(Row("8 branches", {"us": 1.5}).to_line(), flush=True)
"""


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        ("", ""),
        ("raise SystemExit('an illegal memory access was encountered')", "an illegal memory"),
        ("import time; time.sleep(600)", "longer than"),
    ],
)
def test_what_was_found_is_kept_however_a_process_ends(then: str, problem: str) -> None:
    seconds, found = 1.5 if "longer" in problem else 300.0, Answer(1, "the device")
    while not found.rows and seconds < 500:  # in 1.5 s it may not have come to its first row
        found = Answer(1, "the device")
        listen(found, [sys.executable, "-c", PROCESS + then], os.environ, seconds)
        seconds *= 4

    assert found.rows == [Row("8 branches", {"us": 1.5})]
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)


def test_a_row_is_written_before_the_question_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, on_disk = tmp_path / command.FILE, list[str]()

    def listen_to_a_row(
        found: Answer, _: object, __: object, ___: float, written: Callable[[], None]
    ) -> None:
        found.rows.append(Row("8 branches", {"us": 1.5}))
        written()
        on_disk.append(file.read_text())

    monkeypatch.setattr(command, "_gpu_is_there", lambda: True)
    monkeypatch.setattr(command, "listen", listen_to_a_row)

    assert main(["--only", "5", "--out", str(tmp_path)]) == 0

    (answer,) = json.loads(on_disk[0])["answers"]
    assert answer["rows"] == [{"what": "8 branches", "figures": {"us": 1.5}}]


HELD = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("then", ["", "import time; time.sleep(600)"], ids=["ends", "hangs"])
def test_what_a_question_leaves_running_holds_nobody_up(then: str) -> None:
    found = Answer(5, "a compiler's workers")
    program = [sys.executable, "-c", HELD + PROCESS + then]

    listen(found, program, os.environ, 5.0 if then else 600.0)

    if not then:  # else it may not have come to its first row
        assert found.rows == [Row("8 branches", {"us": 1.5})]
    assert ("longer than" in found.problem) == bool(then)


ASKED = """
import atexit, time
from benchmarks.cuda_questions import __main__ as command
from benchmarks.cuda_questions.answers import Row
from benchmarks.cuda_questions.questions import Question

def ask(folder):
    atexit.register(time.sleep, 600)  # as Inductor waits for its workers
    yield Row("8 branches", {"us": 1.5})
    FAULT

command.QUESTIONS = (Question(5, "Inductor's units", ask),)
command.main(["--ask", "5", "--models", "."])
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["", "raise RuntimeError('an illegal memory access')"])
def test_an_answered_question_ends_without_waiting_for_compilers(fault: str) -> None:
    found = Answer(5, "Inductor's units")

    listen(found, [sys.executable, "-c", ASKED.replace("FAULT", fault)], os.environ, 600.0)

    assert found.rows == [Row("8 branches", {"us": 1.5})]
    assert ("an illegal memory access" in found.problem) == bool(fault)
    assert bool(found.problem) == bool(fault)


def test_answers_are_shown_and_written() -> None:
    one = Answer(
        6, "priorities", [Row("a chain", {"us": 1234.5, "refused": "no", "ok": True})], "died"
    )

    assert "a chain  us 1234  refused no  ok True" in table(one)
    assert "NOT TO THE END: died" in table(one)
    assert json.loads(document({}, [one]))["answers"][0]["rows"][0]["figures"]["ok"] is True


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--only", "1,3", "--out", str(tmp_path)]) == 0

    assert capsys.readouterr().out.strip() == NO_GPU
    assert [each.number for each in QUESTIONS] == [1, 2, 3, 4, 5, 7]


def test_unknown_questions_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--only", "8"])
