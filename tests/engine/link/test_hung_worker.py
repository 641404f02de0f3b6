"""A worker that hangs in work that cannot be stopped is killed and replaced."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from braid.core.errors import RunTooLong, WorkerDied, WorkerRestarting
from braid.core.program import ProgramKey
from braid.engine.link import watch, worker_process
from braid.engine.link.messages import FindFacts, RunExecutable
from braid.engine.link.options import EndReason, WatchLimits, WorkerEnd, WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import LinkEvents, LinkState, WorkerLink
from braid.engine.link.watch import RunBound
from tests.engine.link.endless_worker import BEGAN, FINE

OPTIONS = WorkerOptions(
    1, 1 << 16, 0, 1, module="tests.engine.link.endless_worker", watch=WatchLimits(step_s=0.5)
)
ENDLESS = 1
TIMEOUT_S = 30.0


class Changes:
    """Tells when a link comes up or goes down."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def told(self, state: LinkState) -> None:
        self._changed.set()

    async def until(self, link: WorkerLink, *, is_up: bool) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while (link.state is LinkState.UP) is not is_up:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def opened(options: WorkerOptions = OPTIONS) -> AsyncIterator[tuple[WorkerLink, Changes]]:
    arena = Arena(1 << 16)
    ends: list[WorkerEnd] = []
    changes = Changes()
    link = WorkerLink("cpu", options, arena, LinkEvents(on_state=changes.told, on_end=ends.append))
    await link.start()
    first = pid_of(link)
    try:
        yield link, changes
        assert [end.reason for end in ends] == [EndReason.HUNG]
        await changes.until(link, is_up=True)
        assert (await link.run(RunExecutable(FINE, 0), RunBound())).compute_us == 7
        assert pid_of(link) != first
        assert not psutil.pid_exists(first)
    finally:
        await link.close()
        arena.close()


@pytest.fixture(autouse=True)
def began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipe that can be read once an endless run has begun."""
    pipe = tmp_path / "began"
    os.mkfifo(pipe)
    monkeypatch.setenv(BEGAN, str(pipe))
    monkeypatch.setattr(worker_process, "TICK_S", 0.2)
    monkeypatch.setattr(watch, "GRACE_S", 0.3)
    return pipe


def pid_of(link: WorkerLink) -> int:
    assert link.device is not None
    return int(link.device.software["pid"])


async def fails(answer: asyncio.Future[Any], how: type[Exception], text: str) -> None:
    with pytest.raises(how, match=text):
        await asyncio.wait_for(answer, TIMEOUT_S)


async def test_a_run_over_its_limit_costs_the_worker_and_other_runs_may_be_sent_again() -> None:
    async with opened() as (link, changes):
        endless = link.run(RunExecutable(ENDLESS, 0), RunBound(limit_s=0.5))
        waiting = link.run(RunExecutable(FINE, 0), RunBound(limit_s=0.5))
        await fails(endless, RunTooLong, "its device had to be stopped: a run did not end")
        await fails(waiting, WorkerRestarting, "try again")
        await changes.until(link, is_up=False)


async def test_a_run_without_requests_costs_the_worker_if_it_does_not_end(began: Path) -> None:
    async with opened() as (link, changes):
        endless = link.run(RunExecutable(ENDLESS, 0), RunBound())
        await asyncio.to_thread(began.read_text)
        link.stop(endless)
        await fails(endless, RunTooLong, "a run did not end|nor end a late run")
        await changes.until(link, is_up=False)


async def test_a_step_of_other_work_that_does_not_end_costs_the_worker() -> None:
    async with opened(OPTIONS) as (link, changes):
        measured = link.call(FindFacts(ProgramKey("d", ())))
        await fails(measured, RunTooLong, "one step of its work did not end")
        await changes.until(link, is_up=False)


@pytest.mark.parametrize(("number", "is_of_run"), [(signal.SIGFPE, True), (signal.SIGKILL, False)])
async def test_only_a_crash_is_of_the_run_that_goes_on(
    number: signal.Signals, is_of_run: bool, began: Path
) -> None:
    arena, changes = Arena(1 << 16), Changes()
    link = WorkerLink("cpu", OPTIONS, arena, LinkEvents(on_state=changes.told))
    await link.start()
    try:
        runs = [link.run(RunExecutable(ENDLESS, 0), RunBound()) for _ in range(2)]
        await asyncio.to_thread(began.read_bytes)

        os.kill(pid_of(link), number)

        ends = await asyncio.gather(*runs, return_exceptions=True)
        assert [type(end) for end in ends] == [WorkerDied, WorkerDied]
        assert [getattr(end, "is_of_run", None) for end in ends] == [is_of_run, False]
        await changes.until(link, is_up=True)
    finally:
        await link.close()
        arena.close()
