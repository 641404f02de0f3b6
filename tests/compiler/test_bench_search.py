"""A bench that searches: batches of measurements are kept, and what is cached is not measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.compiler.bench_search import BenchSearch
from braid.compiler.options import ModelOptions
from braid.compiler.planner_messages import PlansFound, decode, encode
from braid.compiler.report import Event, Profiling, Searching, StageMeasured
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.compiler.work import CompileOptions, Work
from braid.core.errors import DiskFailure, DiskTrouble, WorkerRestarting
from braid.core.measurement import DeviceFacts, StageLatency
from braid.core.plan import sequential_plan, verify_plan
from braid.core.program import ProgramKey
from braid.core.tensor import TensorType
from braid.engine.importer.host.report import file_digest
from braid.engine.link.messages import (
    DescribeProgram,
    FindFacts,
    SearchPlans,
    SearchProgress,
    SearchResult,
)
from braid.engine.link.options import WorkerOptions
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned
from braid.server.devices.device import Device
from tests.compiler.test_planner_process import FACTS
from tests.engine.importer.running import import_here
from tests.models.small import small_cnn

PROGRAM = ProgramKey("ab", (("x", TensorType("FP32", (1, 8))),))
PLANS = (Planned("sequential", sequential_plan(4), (), 1.0),)
DONE = SearchResult(encode(PlansFound(PLANS)).decode())


def told(*names: str, total: int = 0) -> SearchProgress:
    """Progress with one measurement of each stage."""
    latencies = {name: StageLatency(10.0, 0.1, 3) for name in names}
    return SearchProgress(0, total, (0.5,) * len(names), 0, len(names), latencies)


class Cache:
    """Keeps latencies in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[str, float] = {}
        self.error: Exception | None = None

    async def all_latencies(self) -> Mapping[str, float]:
        return self.kept

    async def keep_latencies(self, latencies: Mapping[str, StageLatency]) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.kept |= {name: latency.latency_us for name, latency in latencies.items()}


class Bench:
    """Tells what it is given, one list a search, and ends with the last element of it."""

    def __init__(self, *searches: Sequence[SearchProgress | SearchResult | Exception]) -> None:
        self.left = list(searches)
        self.asked: list[SearchPlans] = []
        self.cancelled = 0
        self.told = asyncio.Event()

    async def ask(self, request: SearchPlans, on_progress: Callable[[Any], None]) -> SearchResult:
        self.asked.append(request)
        *progress, end = self.left.pop(0)
        for each in progress:
            on_progress(each)
        if isinstance(end, Exception):
            raise end
        if isinstance(end, SearchProgress):
            on_progress(end)
            self.told.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        assert isinstance(end, SearchResult)
        return end


async def a_moment(_: float) -> None:
    await asyncio.sleep(0)


def search_in(bench: Bench, cache: Cache, report: Callable[[Event], None]) -> BenchSearch:
    options = CompileOptions(
        cast(Any, None), 1e-4, retry=RetryWhileRestarting(RetryPauses((0.1,) * 3, a_moment))
    )
    imported = SimpleNamespace(options=ModelOptions(planner=PlannerSettings("lazy-ios")))
    work = Work(cast(Any, imported), cast(Any, bench), 1, options, cast(Any, cache), report)
    return BenchSearch(work, PROGRAM, FACTS)


async def test_measurements_are_kept_and_counted_and_progress_is_told() -> None:
    events: list[Event] = []
    cache, bench = Cache(), Bench([told("a", "b", total=4), told("c"), DONE])
    search = search_in(bench, cache, events.append)

    plans = await search.plans()

    assert tuple(plans) == PLANS
    assert cache.kept == dict.fromkeys("abc", 10.0)
    assert (search.measured, search.learned, search.reused) == (3, 3, 0)
    assert [event for event in events if isinstance(event, Profiling | Searching)] == [
        Profiling(0, 4),
        Searching(3),
    ]
    assert events.count(StageMeasured(0.5)) == 3


async def test_a_bench_that_dies_measures_nothing_again_that_it_had_told() -> None:
    dies = WorkerRestarting("the device worker died")
    cache, bench = Cache(), Bench([told("a"), dies], [told("b"), dies], [told("c"), DONE])
    search = search_in(bench, cache, lambda _: None)

    await search.plans()

    assert [json.loads(request.cached_us) for request in bench.asked] == [
        {},
        {"a": 10.0},
        {"a": 10.0, "b": 10.0},
    ]
    assert search.measured == 3


async def test_what_cannot_be_kept_ends_the_search() -> None:
    cache, bench = Cache(), Bench([told("a")])
    cache.error = DiskFailure(DiskTrouble.FULL, "the store")

    with pytest.raises(DiskFailure):
        await search_in(bench, cache, lambda _: None).plans()

    await asyncio.sleep(0)
    assert bench.cancelled == 1


async def test_an_error_of_whom_it_reports_to_ends_the_search() -> None:
    def report(event: Event) -> None:
        raise ZeroDivisionError

    bench = Bench([told("a")])

    with pytest.raises(ZeroDivisionError):
        await search_in(bench, Cache(), report).plans()

    await asyncio.sleep(0)
    assert bench.cancelled == 1


async def test_cancelling_ends_what_is_measured_and_keeps_what_was_told() -> None:
    cache, bench = Cache(), Bench([told("a")])
    task = asyncio.create_task(search_in(bench, cache, lambda _: None).plans())
    await bench.told.wait()

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert task.cancelled()
    assert bench.cancelled == 1
    assert cache.kept == {"a": 10.0}


@pytest.mark.ci
async def test_a_real_bench_plans_by_what_it_measures_and_measures_nothing_twice(
    tmp_path: Path,
) -> None:
    upload = small_cnn(tmp_path / "cnn.onnx")
    digest = file_digest(upload)
    import_here(upload, tmp_path / "artefact")
    options = WorkerOptions(2, 64 << 20, 64 << 20, 3)
    device = Device("cpu", options)
    program = ProgramKey(digest, (("x", TensorType("FP32", (2, 3, 16, 16))),))
    settings = PlannerSettings("ios")
    await device.start()
    try:
        device.keep(digest)
        await device.load(digest, tmp_path / "artefact")
        graph = (await device.ask(DescribeProgram(program))).graph
        facts: DeviceFacts = await device.ask(FindFacts(program))

        async def searched(
            cached_us: Mapping[str, float],
        ) -> tuple[list[SearchProgress], PlansFound]:
            progress: list[SearchProgress] = []
            document = json.dumps(dict(cached_us))
            request = SearchPlans(program, settings.text, facts, document, 4 << 30, 600.0)
            plans = decode((await device.ask(request, progress.append)).plans)
            assert isinstance(plans, PlansFound)
            return progress, plans

        assert device.searches
        first, found = await searched({})
        us = {name: each.latency_us for one in first for name, each in one.latencies.items()}
        again, same = await searched(us)
    finally:
        await device.close()

    lost = sum(one.learned for one in first) - len(us)  # while other processes had the cores
    assert us
    assert min(us.values()) > 0
    assert lost >= 0
    assert sum(one.reused for one in again) >= len(us)
    assert sum(one.learned for one in again) <= lost  # near ties are measured anew, of course
    for (plan,) in (found.planned, same.planned):
        verify_plan(plan.plan, graph.predecessors())
        assert len(plan.plan.launches) == len(graph.operators)
        assert sorted(unit for stage in plan.stages for unit in stage.operators) == [
            *range(len(graph.operators))
        ]
