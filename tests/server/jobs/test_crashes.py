"""A server that dies in the middle of a job, and what the next start makes of it."""

import asyncio
from pathlib import Path

import pytest

from braid.server.store.records import JobStatus
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import HOLDS, reach, times_measured, until_ended


@pytest.mark.parametrize("state", HOLDS)
async def test_a_killed_job_goes_on_where_it_was_and_measures_nothing_twice(
    tmp_path: Path, state: JobStatus
) -> None:
    killed = Server(tmp_path)
    await killed.runner.start()
    HOLDS[state](killed)
    made = await killed.register(sizes=(1, 4))
    await reach(killed, made.job.id, state)
    await asyncio.sleep(0.2)  # until the job stands where it is held
    killed.store.folder.close()  # as the kernel does

    server = Server(tmp_path)
    await server.runner.start()
    *_, job = await until_ended(server, made.job.id)

    assert job.state is JobStatus.READY
    assert not list(server.store.folder.uploads.iterdir())
    assert times_measured(killed, server) == {1}
    assert sorted(size for _, _, size in server.models.plans) == [1, 4]
    await server.stop()
    await killed.stop()
