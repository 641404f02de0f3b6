"""The worker that registrations measure in: there when it is needed, and gone when it is not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from braid.compiler.bench import MeasuringProcess
from braid.core.errors import WorkerRestarting
from braid.core.program import PlansToCompare, ProgramKey
from braid.core.schedule import Stage
from braid.engine.link.messages import (
    ComparePlans,
    DescribeProgram,
    DeviceDescription,
    MeasureStage,
)
from braid.engine.link.options import WorkerOptions
from braid.engine.link.shared_memory import Arena

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
