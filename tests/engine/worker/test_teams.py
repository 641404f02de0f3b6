"""Teams and runtimes on one thread, as a worker measures and runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch

from braid.core.plan import plan_of_teams, sequential_plan
from braid.core.program import PlansToCompare, PlanToRun, ProgramKey
from braid.core.runtimes import on_one_thread
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.engines import installed_engines
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.segments import find_runner
from braid.engine.importer.host.report import read_report
from braid.engine.link.messages import (
    ComparePlans,
    LaunchLatencies,
    MeasureInPlace,
    PlanMeasurements,
)
from braid.engine.runtime.yielding import no_pause
from braid.engine.worker.measuring.measurements import Measurements, Task
from braid.engine.worker.models import ModelTable, seeded_inputs
from braid.engine.worker.requests import begin_run
from tests.engine.importer.running import import_here
from tests.models.small import small_cnn


class Worker:
    """A worker's table with one model, on two threads."""

    def __init__(self, folder: Path) -> None:
        artefact = import_here(small_cnn(folder / "model.onnx"), folder / "artefact")
        digest = read_report(artefact).sha256
        self.backend = CpuBackend(CpuExecutor(threads=2))
        self.table = ModelTable(self.backend)
        self.table.load(digest, artefact)
        self.key = ProgramKey(digest, (("x", TensorType("FP32", (2, 3, 16, 16))),))
        self.graph = self.table.program(self.key).graph
        self.measurements = Measurements(self.backend, self.table, no_pause)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.backend.close()


def result_of(task: Task) -> object:
    while True:
        try:
            next(task)
        except StopIteration as end:
            return end.value


def test_each_unit_of_each_plan_has_a_time(worker: Worker) -> None:
    units = len(worker.graph)
    plans = plan_of_teams([1] * units), plan_of_teams([2] * units)

    measured = result_of(worker.measurements.in_place(MeasureInPlace(worker.key, plans)))

    assert isinstance(measured, LaunchLatencies)
    if find_runner() is None:
        assert measured.launches_us == ()
        return
    assert [len(times) for times in measured.launches_us] == [units, units]
    assert all(us > 0 for times in measured.launches_us for us in times)


@pytest.mark.parametrize("engine", installed_engines())
def test_a_runtime_on_one_thread_starts_none_and_is_right(worker: Worker, engine: str) -> None:
    inputs = seeded_inputs(worker.graph, {}, 0)

    def outputs(to_run: PlanToRun) -> dict[str, torch.Tensor]:
        ready = worker.table.executable_of(to_run, None)
        memory = {name: torch.empty(2, 4, 16, 16) for name in worker.graph.outputs}
        begin_run(worker.backend, ready, inputs, memory).finish()
        return memory

    expected = outputs(PlanToRun(worker.key))
    before = set(os.listdir("/proc/self/task"))

    answered = outputs(PlanToRun(worker.key, runtime=on_one_thread(engine)))

    until = monotonic() + 120  # the thread that opened it has been joined, and ends in a moment
    while not set(os.listdir("/proc/self/task")) <= before and monotonic() < until:
        sleep(0.001)
    assert set(os.listdir("/proc/self/task")) <= before
    torch.testing.assert_close(answered, expected, rtol=1e-4, atol=1e-4)


def test_one_lane_and_runtimes_on_one_thread_stand_in_one_contest(worker: Worker) -> None:
    units = len(worker.graph)
    plans = sequential_plan(units), plan_of_teams([1] * units)
    runtimes = tuple(map(on_one_thread, installed_engines()))
    field = PlansToCompare(worker.key, plans, runtimes, tolerance=1e-3)

    measured = result_of(worker.measurements.compare(ComparePlans(worker.key, (field,))))

    assert isinstance(measured, PlanMeasurements)
    assert [plan.problem for plan in measured.plans] == [""] * (2 + len(runtimes))
    assert all((plan.max_rel_error or 0.0) < 1e-3 for plan in measured.plans)
