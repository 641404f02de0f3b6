"""kill -9 of a server in the middle of a job, and what the next start makes of it."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from braid.server.store.records import JobRecord, JobStatus, ModelStatus, ModelVersion
from tests.server.jobs.crashing_server import SIZES, log_measurements
from tests.server.jobs.fakes import Server

STAGES = 8  # of the diamond of fakes.py, at each batch size


async def crash(root: Path, log: Path, point: str, after_s: float | None = None) -> None:
    """Run a server until it comes to ``point``, or for a while, and kill it there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.server.jobs.crashing_server", str(root), str(log), point),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    if after_s is None:
        assert await asyncio.wait_for(process.stdout.readline(), 120) == b"there\n"
    else:
        while not (root / "braid.db").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(after_s)
    process.kill()
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


async def finish(root: Path, log: Path) -> tuple[Server, list[JobRecord], list[ModelVersion]]:
    """Start again, and wait until every job has ended. The server is stopped when this returns."""
    server = Server(root)
    log_measurements(server.device, log)
    await server.runner.start()
    for job in server.store.jobs():
        async with asyncio.timeout(120):
            _ = [_ async for _ in server.runner.watch(job.id)]
    found = server, server.store.jobs(), server.store.models()
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

    server, (job,), _ = await finish(root, log)

    assert job.state is JobStatus.READY
    assert set(measured(log).values()) == {1}
    assert measured(log).total() == STAGES * len(SIZES)
    assert sorted(size for _, _, size in server.models.plans) == list(SIZES)


async def test_killed_again_and_again_a_job_repeats_at_most_what_was_under_way(
    tmp_path: Path,
) -> None:
    root, log = tmp_path / "store", tmp_path / "log"
    chance = random.Random(1)
    await crash(root, log, "importing")
    kills = 5
    for _ in range(kills):
        await crash(root, log, "slowly", after_s=chance.uniform(0.0, 0.3))

    server, (job,), (model,) = await finish(root, log)

    folder = server.store.folder
    assert (job.state, model.state) == (JobStatus.READY, ModelStatus.SERVING)
    assert measured(log).total() <= STAGES * len(SIZES) + kills
    assert not list(folder.uploads.iterdir())
    assert [path.name for path in folder.artefacts.iterdir()] == [model.sha256]
