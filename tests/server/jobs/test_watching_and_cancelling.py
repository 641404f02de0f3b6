import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from braid.core.errors import JobNotFound, PreconditionFailed
from braid.server.jobs.registry import Registry
from braid.server.jobs.runner import JobRunner
from braid.server.jobs.services import JobServices
from braid.server.store.records import JobRecord, JobStatus, ModelStatus
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import reach, registered, until_ended

# Watching.


async def test_a_slow_watcher_sees_the_end_and_blocks_nobody(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    slow = server.runner.watch(made.job.id)
    first = await anext(slow)

    server.device.gate.set()
    await until_ended(server, made.job.id)
    rest = [job async for job in slow]

    assert not first.state.has_ended
    assert [job.state for job in rest] == [JobStatus.READY]


async def test_an_ended_job_is_watched_once(server: Server) -> None:
    job = await registered(server)

    assert await until_ended(server, job.id) == [job]
    assert await server.runner.find(job.id) == job
    with pytest.raises(JobNotFound):
        await until_ended(server, "nonsense")


class Stored:
    """A store with one job, whose end it knows at the third look."""

    def __init__(self) -> None:
        self._states = iter([JobStatus.QUEUED, JobStatus.QUEUED])

    async def call(self, method: Callable[[str], JobRecord], job_id: str) -> JobRecord:
        return method(job_id)

    def find_job(self, job_id: str) -> JobRecord:
        return JobRecord(job_id, "lenet", 1, next(self._states, JobStatus.READY))


async def test_a_watcher_of_a_job_that_is_stored_and_not_yet_live_sees_its_end() -> None:
    services = SimpleNamespace(store=Stored(), registry=Registry(), files=None)
    runner = JobRunner(cast(JobServices, services))
    runner._is_started = True
    runner._started.set()

    seen = [job.state async for job in runner.watch("0123")]

    assert seen == [JobStatus.QUEUED, JobStatus.READY]


async def test_listing_shows_live_progress(server: Server) -> None:
    await registered(server, name="first")
    server.importer.gate = asyncio.Event()
    made = await server.register(name="second", content=b"2")
    await reach(server, made.job.id, JobStatus.IMPORTING)

    newest, oldest = await server.runner.list()

    assert (newest.model, newest.state, newest.detail) == (
        "second",
        JobStatus.IMPORTING,
        "lowering",
    )
    assert (oldest.model, oldest.state) == ("first", JobStatus.READY)
    assert [job.model for job in await server.runner.list("first")] == ["first"]
    assert server.observer.jobs == {"READY": 1, "IMPORTING": 1}


# Order.


async def test_jobs_take_turns_and_a_new_model_serves_while_another_is_measured(
    server: Server,
) -> None:
    server.device.gate = asyncio.Event()
    first = await server.register("first", b"1")
    await reach(server, first.job.id, JobStatus.PROFILING)

    second = await server.register("second", b"2")
    await reach(server, second.job.id, JobStatus.PROFILING)
    waiting = await server.runner.find(second.job.id)

    assert ("second", 1) in server.models.serving
    assert waiting.detail == "batch size 1: waiting for the device"
    server.device.gate.set()
    for made in (first, second):
        assert (await until_ended(server, made.job.id))[-1].state is JobStatus.READY


# Cancelling.


async def test_a_job_can_be_cancelled_while_queued_importing_and_profiling(server: Server) -> None:
    server.importer.gate = server.device.gate = asyncio.Event()
    importing = await server.register("a", b"1")
    queued = await server.register("b", b"2")
    await reach(server, importing.job.id, JobStatus.IMPORTING)

    assert (await server.runner.find(queued.job.id)).state is JobStatus.QUEUED
    for made in (queued, importing):
        assert (await server.runner.cancel(made.job.id)).state is JobStatus.CANCELLED
        assert server.models.known[made.model.name, 1].state is ModelStatus.FAILED
    server.importer.gate = None
    profiling = await server.register("c", b"3")
    await reach(server, profiling.job.id, JobStatus.PROFILING)
    assert (await server.runner.cancel(profiling.job.id)).state is JobStatus.CANCELLED

    assert server.store.find_model("c", 1).state is ModelStatus.SERVING
    assert server.device.measuring == 0
    assert not list(server.store.folder.uploads.iterdir())
    assert server.observer.jobs == {"CANCELLED": 3}


async def test_cancelling_twice_is_once_and_cancelling_the_ended_is_refused(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    await reach(server, made.job.id, JobStatus.PROFILING)
    both = await asyncio.gather(*(server.runner.cancel(made.job.id) for _ in range(2)))
    assert both[0] == both[1] == await server.runner.cancel(made.job.id)

    server.device.gate = None
    done = await registered(server)

    with pytest.raises(PreconditionFailed, match="has ended already: READY"):
        await server.runner.cancel(done.id)
    with pytest.raises(JobNotFound):
        await server.runner.cancel("nonsense")


async def test_a_caller_who_leaves_while_cancelling_leaves_a_cancelled_job(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    await reach(server, made.job.id, JobStatus.PROFILING)

    caller = asyncio.create_task(server.runner.cancel(made.job.id))
    await asyncio.sleep(0)
    caller.cancel()

    assert (await until_ended(server, made.job.id))[-1].state is JobStatus.CANCELLED


async def test_deleting_a_model_ends_its_jobs(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    other = await server.register("other", b"2")

    await server.runner.cancel_model("lenet", 1)

    assert server.store.find_job(made.job.id).state is JobStatus.CANCELLED
    assert not (await server.runner.find(other.job.id)).state.has_ended
