"""Plans with parts in engines as a worker serves and measures them."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from braid.core.errors import PreconditionFailed
from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.program import PlanToRun, ProgramKey
from braid.core.runtimes import ONNXRUNTIME
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.device_key import ENGINES, installed_engines
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.host.report import read_report
from braid.engine.link.messages import MeasureParts, PartMeasurements, PrepareExecutable
from braid.engine.program.onnxruntime_session import OnnxSession
from braid.engine.runtime.arrays import Array
from braid.engine.runtime.yielding import no_pause
from braid.engine.worker.measuring.measurements import Measurements, Task
from braid.engine.worker.models import UNIT_BYTES, ModelTable, ReadyExecutable, seeded_inputs
from braid.engine.worker.requests import RequestHandlers, begin_run
from tests.engine.cpu.executors import on_tensors
from tests.engine.importer.running import import_here
from tests.models.small import small_cnn


class Served:
    def __init__(self, folder: Path) -> None:
        artefact = import_here(small_cnn(folder / "model.onnx"), folder / "artefact")
        self.digest = read_report(artefact).sha256
        self.backend = CpuBackend(CpuExecutor(threads=2))
        self.table = ModelTable(self.backend)
        self.table.load(self.digest, artefact)
        self.key = ProgramKey(self.digest, (("x", TensorType("FP32", (2, 3, 16, 16))),))
        self.graph = self.table.program(self.key).graph
        self.inputs = seeded_inputs(self.graph, {}, 0)

    def part(self, first: int, last: int, engine: str, threads: int = 2) -> EnginePart:
        return EnginePart(tuple(range(first, last)), engine, ENGINES[engine].version, threads)

    def plan(self, *parts: EnginePart) -> StreamPlan:
        launches = tuple(Launch(unit, 0) for unit in range(len(self.graph)))
        return StreamPlan(launches, 1, parts=parts)

    def ready(self, plan: StreamPlan | None) -> ReadyExecutable:
        return self.table.executable_of(PlanToRun(self.key, plan), None)

    def outputs(self, ready: ReadyExecutable) -> dict[str, Array]:
        return outputs_of(self, ready, self.inputs)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.backend.close()


@pytest.mark.parametrize("engine", installed_engines())
def test_a_part_between_own_units_computes_what_these_do(served: Served, engine: str) -> None:
    ready = served.ready(served.plan(served.part(1, 4, engine)))

    assert ready.fallback is not None
    expected = served.outputs(served.ready(None))
    for _ in range(3):
        torch.testing.assert_close(served.outputs(ready), expected, rtol=1e-4, atol=1e-4)


def test_a_plan_of_an_engine_in_another_version_runs_sequentially(served: Served) -> None:
    part = replace(served.part(1, 3, ONNXRUNTIME), version="0.1")

    with pytest.raises(PreconditionFailed, match=r"and the plan is of 0\.1"):
        served.table.open_parts(served.key, [part])
    ready = served.ready(served.plan(part))

    expected = served.outputs(served.ready(None))
    torch.testing.assert_close(served.outputs(ready), expected, rtol=0, atol=0)


def test_an_engine_that_is_gone_is_named(served: Served) -> None:
    part = EnginePart((1, 2), "ncnn", "1.0", 1)

    with pytest.raises(PreconditionFailed, match="ncnn is not installed"):
        served.table.open_parts(served.key, [part])


def test_what_a_part_refuses_in_a_run_the_sequential_plan_computes(served: Served) -> None:
    plain = served.ready(None)

    class Refusing:
        activation_bytes = None

        def begin(self, inputs: object, outputs: object = None) -> None:
            raise PreconditionFailed("integers up to 7")

    refusing = replace(plain, prepared=Refusing(), fallback=plain.prepared)  # type: ignore[arg-type]

    torch.testing.assert_close(served.outputs(refusing), served.outputs(plain))
    with pytest.raises(PreconditionFailed, match="up to 7"):
        served.outputs(replace(refusing, fallback=None))


def test_a_worker_prepares_a_plan_with_parts_also_if_they_refuse_what_is_made_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = served.table
    measurements = Measurements(served.backend, table, no_pause)
    handlers = RequestHandlers(served.backend, mmap(-1, 4096), table, measurements, no_pause)
    to_run = PlanToRun(served.key, served.plan(served.part(1, 4, ONNXRUNTIME)))

    handlers.prepare(PrepareExecutable(1, to_run))
    (ready,) = table.executables(1)
    assert ready.fallback is not None
    assert ready.needs_finite

    def refuse(*_: object) -> None:
        raise PreconditionFailed("integers up to 7")

    monkeypatch.setattr(OnnxSession, "run_into", refuse)
    handlers.prepare(PrepareExecutable(2, to_run))
    (ready,) = table.executables(2)
    torch.testing.assert_close(served.outputs(ready), served.outputs(served.ready(None)))


def test_parts_are_measured_and_those_refused_say_why(served: Served) -> None:
    parts = [served.part(1, 4, engine, n) for engine in installed_engines() for n in (1, 2)]
    own = EnginePart((1, 2, 3), "", "", 2)
    other = replace(parts[0], version="0.1")
    request = MeasureParts(served.key, tuple((part,) for part in (own, other, *parts)))

    task = Measurements(served.backend, served.table, no_pause).parts(request)
    while True:
        try:
            next(task)
        except StopIteration as end:
            measured = end.value
            break

    assert isinstance(measured, PartMeasurements)
    refused = [outcome.problem for outcome in measured.stages if outcome.latency_us is None]
    assert len(measured.stages) == len(request.stages)
    assert len(refused) == 1
    assert "0.1" in refused[0]


@pytest.mark.parametrize("engine", installed_engines())
def test_the_memory_of_a_mixed_plan_is_counted_and_is_near_that_of_a_whole_one(
    served: Served, engine: str
) -> None:
    def memory_bytes(to_run: PlanToRun) -> int:
        ready = served.table.executable_of(to_run, None)
        served.table.prepare(1, [ready])
        memory = served.table.memory(served.digest, ready)
        served.table.release(1)
        return memory.host_weights + memory.sessions

    own = memory_bytes(PlanToRun(served.key))
    mixed = memory_bytes(PlanToRun(served.key, served.plan(served.part(1, 4, engine))))
    whole = memory_bytes(PlanToRun(served.key, runtime=engine))

    assert own < mixed <= 1.3 * whole


SIZES = 1, 2, 8


@pytest.mark.parametrize("engine", installed_engines())
def test_equal_parts_of_other_batch_sizes_share_what_the_engine_can_share(
    served: Served, engine: str
) -> None:
    table, plan = served.table, served.plan(served.part(1, 4, engine))
    sizes_bytes = []
    for number, rows in enumerate(SIZES):
        ready = table.executable_of(PlanToRun(with_rows(served, rows), plan), None)
        table.prepare(number, [ready])
        sizes_bytes.append(table.memory(served.digest).sessions)

    part_bytes = sizes_bytes[0] if engine == ONNXRUNTIME else sizes_bytes[0] / 2
    packed = 0 if engine == ONNXRUNTIME else part_bytes  # OpenVINO packs for each size
    assert 0 < part_bytes < served.table.model(served.digest).file_bytes
    assert sizes_bytes == [sizes_bytes[0] + packed * at for at in range(len(SIZES))]
    for number, rows in enumerate(SIZES):
        (ready,) = table.executables(number)
        inputs = {"x": torch.randn(rows, 3, 16, 16).numpy()}
        whole = table.executable_of(PlanToRun(with_rows(served, rows)), None)
        expected = outputs_of(served, whole, inputs)
        for _ in range(2):
            got = outputs_of(served, ready, inputs)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    for number in (1, 0):
        table.release(number)
    assert table.memory(served.digest).sessions == sizes_bytes[0]
    assert part_bytes <= table.size_bytes(ready) - UNIT_BYTES * len(served.graph)


@pytest.mark.parametrize("engine", installed_engines())
def test_the_size_of_a_whole_model_in_an_engine_counts_while_nothing_else_runs_there(
    served: Served, engine: str
) -> None:
    table, to_run = served.table, PlanToRun(served.key, runtime=engine)
    ready = table.executable_of(to_run, None)
    table.prepare(1, [ready])
    served.outputs(ready)  # OpenVINO compiles then

    alone = table.size_bytes(ready)
    table.prepare(2, [table.executable_of(to_run, None)])
    assert alone - table.size_bytes(ready) >= table.model(served.digest).file_bytes
    table.release(2)
    assert table.size_bytes(ready) == alone


def outputs_of(
    served: Served, ready: ReadyExecutable, inputs: dict[str, Array]
) -> dict[str, Array]:
    rows = inputs["x"].shape[0]
    outputs = {name: np.empty((rows, 4, 16, 16), np.float32) for name in served.graph.outputs}
    begin_run(served.backend, ready, inputs, outputs).finish()
    return outputs


def threads_us() -> dict[str, int]:
    """CPU time of each thread of this process, in clock ticks."""
    times = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        times[task.name] = int(fields[11]) + int(fields[12])
    return times


def test_parts_on_one_thread_run_on_the_thread_that_calls_them(served: Served) -> None:
    served.outputs(served.ready(None))
    before = set(os.listdir("/proc/self/task"))

    ready = served.ready(served.plan(served.part(1, 3, ONNXRUNTIME, threads=1)))
    served.outputs(ready)

    until = time.monotonic() + 120  # a thread that was joined leaves the list a little later
    while not set(os.listdir("/proc/self/task")) <= before:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_no_pool_spins_once_its_part_is_over(served: Served) -> None:
    engines = list(installed_engines())
    parts = [served.part(at, at + 1, engines[at % len(engines)]) for at in (0, 1, 2)]
    ready = served.ready(served.plan(*parts))
    assert ready.fallback is not None
    for _ in range(50):
        served.outputs(ready)
    time.sleep(0.1)

    before = threads_us()
    time.sleep(0.5)
    after = threads_us()

    spent = sum(ticks - before.get(thread, 0) for thread, ticks in after.items())
    assert spent <= 0.1 * os.sysconf("SC_CLK_TCK"), "a pool that spins takes half a second"


ROWS = 5


def with_rows(served: Served, rows: int) -> ProgramKey:
    return ProgramKey(served.digest, (("x", TensorType("FP32", (rows, 3, 16, 16))),))


def on_rows(served: Served, *lanes: tuple[str, int]) -> tuple[EnginePart, ...]:
    """Parts of all units for some rows each, in an engine, or on own kernels if that is empty."""
    units = tuple(range(len(served.graph)))
    return tuple(
        EnginePart(units, engine, ENGINES[engine].version if engine else "", 1, rows)
        for engine, rows in lanes
    )


@pytest.mark.parametrize("first", ["", *installed_engines()])
@pytest.mark.parametrize("second", ["", *installed_engines()])
def test_rows_on_lanes_compute_what_the_whole_batch_does(
    served: Served, first: str, second: str
) -> None:
    key = with_rows(served, ROWS)
    inputs = {"x": torch.randn(ROWS, 3, 16, 16).numpy()}
    plan = served.plan(*on_rows(served, (first, 3), (second, 2)))

    ready = served.table.executable_of(PlanToRun(key, plan), None)
    whole = served.table.executable_of(PlanToRun(key), None)

    results = [outputs_of(served, executable, inputs) for executable in (whole, ready, ready)]
    assert ready.fallback is not None
    for got in results[1:]:
        torch.testing.assert_close(got, results[0], rtol=1e-4, atol=1e-4)


def test_lanes_that_have_other_rows_than_the_batch_are_refused(served: Served) -> None:
    with pytest.raises(PreconditionFailed, match="does not count the rows"):
        served.table.open_parts(with_rows(served, ROWS), on_rows(served, ("", 3), ("", 3)))


def test_what_fails_on_another_lane_fails_the_run_and_the_next_one_is_right(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, parts = with_rows(served, ROWS), on_rows(served, ("", 3), (ONNXRUNTIME, 2))
    (unit, *_) = served.table.open_parts(key, parts).values()
    x = torch.randn(ROWS, 3, 16, 16)
    run = on_tensors(unit.kernel, 2)
    expected = run(x)

    def refuse(*_: object) -> None:
        raise PreconditionFailed("integers up to 7")

    with monkeypatch.context() as patch:
        patch.setattr(OnnxSession, "_run_bound", refuse)
        patch.setattr(OnnxSession, "_run_and_copy", refuse)
        with pytest.raises(PreconditionFailed, match="up to 7"):
            run(x)
    torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-4)


def test_stages_of_rows_are_measured(served: Served) -> None:
    key = with_rows(served, ROWS)
    stages = [on_rows(served, (engine, 3), ("", 2)) for engine in ("", *installed_engines())]
    wrong = on_rows(served, ("", 4), ("", 2))

    task = Measurements(served.backend, served.table, no_pause).parts(
        MeasureParts(key, (*stages, wrong))
    )
    *_, measured = [*iterate(task)]

    assert isinstance(measured, PartMeasurements)
    assert [bool(outcome.latency_us) for outcome in measured.stages] == [
        *[True] * len(stages),
        False,
    ]


def iterate(task: Task) -> Iterator[object]:
    result = yield from task
    yield result
