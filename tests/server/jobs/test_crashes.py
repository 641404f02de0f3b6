"""kill -9 of a server in the middle of a job, and what the next start makes of it."""

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from braid.server.store.records import JobRecord, JobStatus
from tests.server.jobs.crashing_server import SIZES, log_measurements
from tests.server.jobs.fakes import Server

STAGES = 8  # of the diamond of fakes.py, at each batch size


async def crash(root: Path, log: Path, point: str) -> None:
    """Run a server until it comes to ``point``, and kill it there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.server.jobs.crashing_server", str(root), str(log), point),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 120) == b"there\n"
    process.kill()
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


async def finish(root: Path, log: Path) -> tuple[Server, list[JobRecord]]:
    """Start again, and wait until every job has ended. The server is stopped when this returns."""
    server = Server(root)
    log_measurements(server.device, log)
    await server.runner.start()
    for job in server.store.jobs():
        async with asyncio.timeout(120):
            _ = [_ async for _ in server.runner.watch(job.id)]
    found = server, server.store.jobs()
    await server.stop()
    return found


def measured(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


@pytest.mark.parametrize(
    ("point", "before"),
    [
        ("importing", 0),
        ("measuring-1", 0),
        ("measuring-3", 2),
        ("searching", STAGES),
        ("comparing", STAGES),
    ],
)
async def test_a_killed_job_goes_on_where_it_was_and_measures_nothing_twice(
    tmp_path: Path, point: str, before: int
) -> None:
    root, log = tmp_path / "store", tmp_path / "log"
    await crash(root, log, point)
    assert measured(log).total() == before

    server, (job,) = await finish(root, log)

    assert job.state is JobStatus.READY
    assert not list(server.store.folder.uploads.iterdir())
    assert set(measured(log).values()) == {1}
    assert measured(log).total() == STAGES * len(SIZES)
    assert sorted(size for _, _, size in server.models.plans) == list(SIZES)
