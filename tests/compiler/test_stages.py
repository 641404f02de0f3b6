"""Answers to a planner's questions: from the cache, or measured and kept."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.compiler.imported_model import ImportedModel, read_imported
from braid.compiler.options import ModelOptions
from braid.compiler.planner import PlannerProcess
from braid.compiler.planner_messages import StageQuery
from braid.compiler.report import Event, Profiling, Searching, StageMeasured, StagesReused
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.compiler.search import search_plans
from braid.compiler.stages import StageMeasurer
from braid.compiler.work import CompileOptions, Work
from braid.core.errors import BraidError, DiskFailure, DiskTrouble, PreconditionFailed, WorkerDied
from braid.core.measurement import StageLatency
from braid.core.plan import EnginePart, verify_plan
from braid.core.program import ProgramKey
from braid.core.runtimes import OPENVINO
from braid.core.schedule import Stage
from braid.engine.importer.host.report import BatchAxes, file_digest
from braid.engine.link.messages import MeasureParts, MeasureStage, PartMeasurement, PartMeasurements
from braid.engine.link.options import WorkerOptions
from braid.scheduler.options import PlannerSettings
from braid.server.devices.device import Device
from tests.engine.importer.running import import_here
from tests.models.small import small_cnn

UNITS = [StageQuery(name, Stage(((at,),))) for at, name in enumerate("abc")]
PARTS = [
    StageQuery(name, Stage(((0, 1),)), "parts", (EnginePart((0, 1), engine, version, 2),))
    for name, engine, version in (("own", "", ""), ("openvino", OPENVINO, "2.0"))
]


class Cache:
    def __init__(self, **known_us: float) -> None:
        self.kept = known_us
        self.error: Exception | None = None

    async def all_latencies(self) -> Mapping[str, float]:
        return self.kept

    async def find_latencies(self, names: Sequence[str]) -> Mapping[str, float]:
        return {name: self.kept[name] for name in names if name in self.kept}

    async def keep_latencies(self, latencies: Mapping[str, StageLatency]) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.kept |= {name: latency.latency_us for name, latency in latencies.items()}


class FakeDevice:
    """Takes 10 us for whatever it is asked, but for a stage of unit 2, which never ends."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_measuring_the_last = asyncio.Event()
        self.parts: Callable[[EnginePart], PartMeasurement] = lambda _: PartMeasurement(10.0)

    async def ask(self, request: MeasureStage | MeasureParts, _: object = None) -> Any:
        if isinstance(request, MeasureParts):
            self.asked += len(request.stages)
            return PartMeasurements(tuple(self.parts(part) for (part,) in request.stages))
        self.asked += 1
        if request.stage.operators == (2,):
            self.is_measuring_the_last.set()
            await asyncio.sleep(3600)
        return StageLatency(10.0, 0.1, 3)


def measurer(
    device: FakeDevice, cache: Cache, report: Callable[[Event], None] = lambda _: None
) -> StageMeasurer:
    retry = RetryWhileRestarting(RetryPauses((0.0,)))
    return StageMeasurer(ProgramKey("ab", ()), cast(Any, device), cast(Any, cache), report, retry)


async def test_what_is_cached_is_not_measured_and_progress_is_told() -> None:
    events: list[Event] = []
    cache, device = Cache(a=5.0), FakeDevice()
    stages = measurer(device, cache, events.append)

    assert await stages.measure(UNITS[:2]) == [5.0, 10.0]
    assert await stages.measure([replace(UNITS[0], ask="work")]) == [10.0]

    assert cache.kept == {"a": 5.0, "b": 10.0, "a@1": 10.0}
    assert (stages.measured, stages.reused) == (2, 1)
    told = [event for event in events if isinstance(event, Profiling | Searching)]
    assert told[:3] == [Profiling(0, 2), Profiling(1, 2), Searching(1)]
    assert StagesReused(1) in events
    assert sum(isinstance(event, StageMeasured) for event in events) == 2


async def test_cancelling_keeps_what_was_measured() -> None:
    cache, device = Cache(), FakeDevice()
    task = asyncio.create_task(measurer(device, cache).measure(UNITS))
    await device.is_measuring_the_last.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert task.cancelled()
    assert cache.kept == {"a": 10.0, "b": 10.0}


async def test_what_cannot_be_kept_ends_the_search() -> None:
    cache = Cache()
    cache.error = DiskFailure(DiskTrouble.FULL, "the store")

    with pytest.raises(DiskFailure):
        await measurer(FakeDevice(), cache).measure(UNITS[:2])


async def test_parts_are_measured_together_and_those_refused_are_not_kept() -> None:
    cache, device = Cache(), FakeDevice()
    device.parts = lambda part: (
        PartMeasurement(problem="it refuses it") if part.engine else PartMeasurement(10.0)
    )

    assert await measurer(device, cache).measure(PARTS) == [10.0, inf]
    assert cache.kept == {"own": 10.0}
    assert await measurer(device, cache).measure(PARTS) == [10.0, inf]
    assert device.asked == 3, "what is cached is not measured again"


@pytest.mark.parametrize("error", [PreconditionFailed("no file"), WorkerDied("it died")])
async def test_a_device_that_fails_at_parts_costs_them_only(error: BraidError) -> None:
    def fail(_: EnginePart) -> PartMeasurement:
        raise error

    device = FakeDevice()
    device.parts = fail
    stages = measurer(device, Cache())

    assert await stages.measure(PARTS) == [inf, inf]
    assert await stages.measure(UNITS[:1]) == [10.0]


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (BatchAxes({"x": 0}, {"p": 0}), 5),
        (None, 0),
        (BatchAxes({"x": 0}, {"p": 0}, alone=True), 0),
        (BatchAxes({"x": 0}, {"p": 1}), 0),
        (BatchAxes({"x": 0}, {"p": None}), 0),
    ],
)
def test_rows_are_apart_only_where_the_import_proved_it(batch: BatchAxes | None, rows: int) -> None:
    imported = cast(ImportedModel, SimpleNamespace(report=SimpleNamespace(batch=batch)))
    nothing = cast(Any, None)
    work = Work(imported, nothing, 5, CompileOptions(nothing, 1e-4), nothing, lambda _: None)

    assert work.rows_apart == rows


@pytest.mark.ci
async def test_a_real_bench_measures_what_a_planner_asks_for_and_nothing_twice(
    tmp_path: Path,
) -> None:
    upload = small_cnn(tmp_path / "cnn.onnx")
    digest = file_digest(upload)
    import_here(upload, tmp_path / "artefact")
    options = ModelOptions((2,), PlannerSettings("ios"))
    imported = read_imported(digest, options, tmp_path / "artefact")
    device, cache = Device("cpu", WorkerOptions(2, 64 << 20, 64 << 20, 3)), Cache()
    how = CompileOptions(PlannerProcess(4 << 30, 600.0), 1e-4)
    work = Work(imported, device, 2, how, cast(Any, cache), lambda _: None)
    await device.start()
    try:
        device.keep(digest)
        await device.load(digest, tmp_path / "artefact")
        first = await search_plans(work)
        known = len(cache.kept)
        again = await search_plans(work)
    finally:
        await device.close()

    assert known == len(cache.kept) > 0
    assert min(cache.kept.values()) > 0
    assert first.stages_measured > 0
    assert again.stages_reused > 0
    for found in (first, again):
        (planned,) = found.planned
        verify_plan(planned.plan, found.graph.predecessors())
        assert sorted(unit for stage in planned.stages for unit in stage.operators) == [
            *range(len(found.graph.operators))
        ]
