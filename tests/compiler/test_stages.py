"""Answers to a planner's questions, from the cache or measured, and the worker that measures."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from braid.compiler.bench import MeasuringProcess
from braid.compiler.device import ATTEMPTS, measure
from braid.compiler.imported_model import ImportedModel, read_imported
from braid.compiler.options import ModelOptions
from braid.compiler.planner import PlannerProcess
from braid.compiler.planner_messages import StageQuery
from braid.compiler.report import Event, Profiling, Searching, StageMeasured, StagesReused
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.compiler.search import search_plans
from braid.compiler.stages import StageMeasurer
from braid.compiler.work import CompileOptions, Work
from braid.core.errors import (
    BraidError,
    DiskFailure,
    DiskTrouble,
    PreconditionFailed,
    WorkerDied,
    WorkerFault,
    WorkerRestarting,
)
from braid.core.measurement import StageLatency
from braid.core.plan import EnginePart, verify_plan
from braid.core.program import PlansToCompare, ProgramKey
from braid.core.runtimes import OPENVINO
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.engine.importer.host.report import BatchAxes, file_digest
from braid.engine.link.messages import (
    ComparePlans,
    DescribeProgram,
    DeviceDescription,
    MeasureParts,
    MeasureStage,
    PartMeasurement,
    PartMeasurements,
)
from braid.engine.link.options import WorkerOptions
from braid.engine.link.shared_memory import Arena
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


PROGRAM = ProgramKey("ab", (("x", TensorType("FP32", (1, 4))),))
REQUEST = MeasureStage(PROGRAM, Stage(((0,),)))


class Place:
    def __init__(self, *latencies_us: float) -> None:
        self.left: Iterator[float] = iter(latencies_us)
        self.measured = 0

    async def ask(self, *_: Any) -> StageLatency:
        self.measured += 1
        return StageLatency(next(self.left), 0.0, 3)


async def test_a_latency_that_cannot_be_is_measured_again() -> None:
    place = Place(0.0, float("nan"), 12.5)

    timing = await measure(place, REQUEST)  # type: ignore[arg-type]

    assert (timing.latency_us, place.measured) == (12.5, 3)


async def test_a_device_that_only_measures_what_cannot_be_is_at_fault() -> None:
    place = Place(*[0.0] * 9)

    with pytest.raises(WorkerFault, match=r"a latency of 0\.0 us was measured, which cannot be"):
        await measure(place, REQUEST)  # type: ignore[arg-type]

    assert place.measured == ATTEMPTS


OPTIONS = WorkerOptions(1, 1 << 16, 0, 1, module="tests.engine.link.losing_worker")


def stage_of(model: str) -> MeasureStage:
    return MeasureStage(ProgramKey(model, ()), Stage(((0,),)))


def compared(model: str, seconds: float = 0.0) -> ComparePlans:
    """A request that the worker answers after a while."""
    program = ProgramKey(model, ())
    return ComparePlans(program, (PlansToCompare(program, (), (), seconds),))


def pid_of(answer: object) -> int:
    """Process that answered; these workers describe themselves, whatever they are asked."""
    assert isinstance(answer, DeviceDescription)
    return int(answer.software["pid"])


def seen_by(answer: object) -> list[str]:
    """Requests that the process has had until it answered."""
    assert isinstance(answer, DeviceDescription)
    return answer.software["seen"].split()


@asynccontextmanager
async def opened(idle_seconds: float = 60.0, **options: Any) -> AsyncIterator[MeasuringProcess]:
    arena = Arena(1 << 16)
    worker = replace(OPTIONS, **options)
    bench = MeasuringProcess("cpu", worker, arena, Path, idle_seconds)
    try:
        yield bench
    finally:
        await bench.close()
        arena.close()


async def runs(bench: MeasuringProcess, *, yes: bool) -> None:
    async with asyncio.timeout(120):
        while (bench.pid is not None) != yes:  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0.01)


async def ends(pid: int) -> None:
    """Wait until a process is gone."""
    async with asyncio.timeout(120):
        while psutil.pid_exists(pid):  # noqa: ASYNC110  (it is no child of this task)
            await asyncio.sleep(0.01)


async def test_it_starts_with_the_first_call_and_loads_each_model_once() -> None:
    async with opened() as bench:
        assert bench.pid is None
        first = await bench.call(stage_of("a"))
        again = await bench.call(compared("a"))
        other = await bench.call(stage_of("b"))

        assert pid_of(first) == pid_of(again) == pid_of(other) == bench.pid
        assert seen_by(other) == [
            "DescribeDevice",
            "LoadModel",
            "MeasureStage",
            "ComparePlans",
            "LoadModel",
            "MeasureStage",
        ]


async def test_it_ends_when_it_is_idle_and_starts_again_when_it_is_called() -> None:
    async with opened(idle_seconds=0.05) as bench:
        first = await bench.call(stage_of("a"))

        await runs(bench, yes=False)
        await ends(pid_of(first))
        fresh = await bench.call(stage_of("a"))
        assert pid_of(fresh) != pid_of(first)
        assert seen_by(fresh) == ["DescribeDevice", "LoadModel", "MeasureStage"]


async def test_a_call_may_take_longer_than_it_is_kept_without_any() -> None:
    async with opened(idle_seconds=0.1) as bench:
        long = await bench.call(compared("a", 0.5))

        assert seen_by(long) == ["DescribeDevice", "LoadModel", "ComparePlans"]


async def test_one_that_never_answers_fails_the_call_and_is_ended() -> None:
    async with opened(module="tests.engine.link.mute_worker", start_timeout_s=0.5) as bench:
        with pytest.raises(
            WorkerRestarting, match=r"cpu did not start: it has not (run|answered) for 0\.5 s"
        ):
            await bench.call(stage_of("a"))

        assert bench.pid is None


async def test_it_is_started_ahead_by_whoever_will_need_it() -> None:
    async with opened() as bench:
        bench.wake()
        await runs(bench, yes=True)
        woken = bench.pid

        assert pid_of(await bench.call(stage_of("a"))) == woken


async def test_its_death_fails_the_calls_that_are_open_and_the_next_one_starts_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened() as bench:
        first = await bench.call(stage_of("a"))
        with pytest.raises(WorkerRestarting):
            await bench.call(DescribeProgram(ProgramKey("a", ())))
        await runs(bench, yes=False)

        fresh = await bench.call(stage_of("a"))

    assert pid_of(fresh) != pid_of(first)
    assert seen_by(fresh) == ["DescribeDevice", "LoadModel", "MeasureStage"]
    assert f"bench of cpu: worker {pid_of(first)} ended: the GPU failed" in caplog.text


async def test_a_model_that_was_unloaded_is_loaded_anew() -> None:
    async with opened() as bench:
        bench.unload("a")  # nothing to do
        await bench.call(stage_of("a"))
        bench.unload("a")
        again = await bench.call(stage_of("a"))

    assert seen_by(again) == [
        "DescribeDevice",
        "LoadModel",
        "MeasureStage",
        "UnloadModel",
        "LoadModel",
        "MeasureStage",
    ]


async def test_closing_fails_open_calls_and_starts_nothing_more() -> None:
    async with opened() as bench:
        await bench.call(stage_of("a"))
        pid = bench.pid
        call = asyncio.create_task(bench.call(compared("a", 30.0)))
        await asyncio.sleep(0.1)

        await bench.close()

        with pytest.raises(WorkerRestarting):
            await call
        bench.wake()
        with pytest.raises(WorkerRestarting, match="shutting down"):
            await bench.call(stage_of("a"))
        assert pid is not None
        assert not psutil.pid_exists(pid)
        assert bench.pid is None


async def test_closing_does_not_wait_for_one_that_is_being_started() -> None:
    async with opened(module="tests.engine.link.mute_worker", start_timeout_s=1e9) as bench:
        bench.wake()
        await runs(bench, yes=True)

        await bench.close()  # it would wait for an answer for ever

        assert bench.pid is None
