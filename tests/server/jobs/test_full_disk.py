import asyncio
import errno
import logging
import os
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy

from braid.core.disk import disk_failure
from braid.core.errors import DiskFailure, DiskTrouble
from braid.core.measurement import StageLatency
from braid.engine.importer.host.messages import Failed, MalformedMessage, decode, encode
from braid.server.store.records import JobStatus, ModelStatus
from tests.clock import until_true
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import until_ended
from tests.server.store.full_disk import taking_no_commits


def of_sqlite(name: str) -> sqlalchemy.exc.OperationalError:
    error = sqlite3.OperationalError("told by its name")
    error.sqlite_errorname = name
    return sqlalchemy.exc.OperationalError("INSERT", {}, error)


# What is an error of the disk.


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (OSError(errno.ENOSPC, "told by its number"), DiskTrouble.FULL),
        (OSError(errno.EDQUOT, "told by its number"), DiskTrouble.QUOTA),
        (OSError(errno.EROFS, "told by its number"), DiskTrouble.READ_ONLY),
        (OSError(errno.EIO, "told by its number"), DiskTrouble.FAILING),
        (of_sqlite("SQLITE_FULL"), DiskTrouble.FULL),
        (of_sqlite("SQLITE_READONLY_DIRECTORY"), DiskTrouble.READ_ONLY),
        (of_sqlite("SQLITE_IOERR_WRITE"), DiskTrouble.FAILING),
    ],
)
def test_errors_of_a_disk_say_what_it_is_where_and_what_to_do(
    error: Exception, trouble: DiskTrouble, tmp_path: Path
) -> None:
    failure = disk_failure(error, tmp_path)

    assert failure is not None
    assert failure.trouble is trouble
    for part in (*trouble.value, str(tmp_path), "try again"):
        assert part in str(failure)


@pytest.mark.parametrize(
    "text",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        "[ONNXRuntimeError] : 1 : FAIL : write to /x failed: No space left on device",
    ],
)
def test_the_words_of_other_libraries_are_known_where_they_are_asked_for(
    text: str, tmp_path: Path
) -> None:
    wrapped = RuntimeError("cannot save")
    wrapped.__cause__ = RuntimeError(text)

    assert disk_failure(wrapped, tmp_path) is None
    failure = disk_failure(wrapped, tmp_path, by_text=True)
    assert failure is not None
    assert failure.trouble is DiskTrouble.FULL


def test_other_errors_are_none_of_the_disk(tmp_path: Path) -> None:
    for error in (FileNotFoundError(2, "x"), of_sqlite("SQLITE_CONSTRAINT"), ValueError("disk")):
        assert disk_failure(error, tmp_path, by_text=True) is None


def test_a_write_that_fails_on_a_disk_without_room_failed_for_want_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.statvfs(tmp_path)
    none_left = os.statvfs_result((*found[:4], 0, *found[5:10]))
    monkeypatch.setattr("braid.core.disk.os.statvfs", lambda _: none_left)

    failure = disk_failure(of_sqlite("SQLITE_IOERR_SHMSIZE"), tmp_path)

    assert failure is not None
    assert failure.trouble is DiskTrouble.FULL


def test_the_importer_tells_of_the_disk_in_a_word_of_the_servers_own() -> None:
    failure = DiskFailure(DiskTrouble.FULL, "/in/the/importer")

    said = decode(encode(Failed(failure)))

    assert isinstance(said, Failed)
    assert isinstance(said.error, DiskFailure)
    assert said.error.trouble is DiskTrouble.FULL
    with pytest.raises(MalformedMessage):
        decode(b'{"failed": "disk", "trouble": "anything"}')


# Jobs.


async def test_a_job_whose_end_cannot_be_stored_ends_all_the_same(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.importer.gate = asyncio.Event()
    server.importer.error = DiskFailure(DiskTrouble.FULL, "/store")
    made = await server.register()
    asleep = asyncio.Event()
    server.sleeping = asleep.wait  # before the end is stored

    with taking_no_commits(server.store):
        server.importer.gate.set()
        job = (await until_ended(server, made.job.id))[-1]

        assert job.state is JobStatus.FAILED
        assert "disk is full (/store); free some space there" in job.message
        assert await server.runner.find(job.id) == job
        assert await server.runner.list() == [job]
        assert server.store.count_jobs()["FAILED"] == 1
        assert server.store.find_model("lenet", 1).state is ModelStatus.FAILED
        assert server.models.known["lenet", 1].state is ModelStatus.FAILED
        assert server.store.has_unstored_ends
        assert len(list(server.store.folder.uploads.iterdir())) == 1, "a crash needs it"
    asleep.set()
    await until_true(lambda: not list(server.store.folder.uploads.iterdir()))

    assert not server.store.has_unstored_ends
    assert server.store.find_job(job.id) == job
    lines = [line for line in caplog.records if line.levelno >= logging.ERROR]
    assert len(lines) == 2, "one of the job, one of the store"
    assert all("disk is full" in line.getMessage() for line in lines)


async def test_once_there_is_room_the_same_registration_begins_at_once(server: Server) -> None:
    server.importer.gate = asyncio.Event()
    server.importer.error = DiskFailure(DiskTrouble.FULL, "/store")
    made = await server.register()
    server.sleeping = asyncio.Event().wait  # it is not a retry that stores the end
    with taking_no_commits(server.store):
        server.importer.gate.set()
        await until_ended(server, made.job.id)
        with pytest.raises(DiskFailure):
            await server.register()
    server.importer.error = None

    again = await server.register()

    assert again.is_new_job
    assert again.model.version == 1
    assert (await until_ended(server, again.job.id))[-1].state is JobStatus.READY
    assert server.store.find_job(made.job.id).state is JobStatus.FAILED


async def test_a_model_that_cannot_be_stored_as_serving_does_not_serve(server: Server) -> None:
    loading = asyncio.Event()
    server.device.before_loading = loading.wait
    made = await server.register()
    async for job in server.runner.watch(made.job.id):
        if job.detail.startswith("loading"):
            break
    with taking_no_commits(server.store):
        loading.set()
        job = (await until_ended(server, made.job.id))[-1]

    assert job.state is JobStatus.FAILED
    assert "disk is full" in job.message
    assert not server.models.serving
    assert server.models.known["lenet", 1].state is ModelStatus.FAILED


async def test_a_job_is_cancelled_without_room_for_its_end(server: Server) -> None:
    server.importer.gate = asyncio.Event()
    made = await server.register()

    with taking_no_commits(server.store):
        job = await server.runner.cancel(made.job.id)

        assert job.state is JobStatus.CANCELLED
        assert (await until_ended(server, made.job.id))[-1].state is JobStatus.CANCELLED


async def test_a_job_whose_end_was_never_stored_goes_on_at_the_next_start(server: Server) -> None:
    server.importer.gate = asyncio.Event()
    server.importer.error = DiskFailure(DiskTrouble.FULL, "/store")
    made = await server.register()
    with taking_no_commits(server.store):
        server.importer.gate.set()
        await until_ended(server, made.job.id)

        again = await server.restarted()
        job = (await until_ended(again, made.job.id))[-1]

    assert job.state is JobStatus.READY
    await again.stop()


async def test_a_full_disk_while_stages_are_measured_leaves_the_model_serving(
    server: Server,
) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register(sizes=(1, 4))
    async for job in server.runner.watch(made.job.id):
        if job.state is JobStatus.PROFILING:
            break
    with taking_no_commits(server.store):
        server.device.gate.set()
        job = (await until_ended(server, made.job.id))[-1]

    assert job.state is JobStatus.UNSCHEDULED
    assert job.message.count("disk is full") == 1
    assert server.models.known["lenet", 1].state is ModelStatus.SERVING
    again = await server.register(sizes=(1, 4))
    assert (await until_ended(server, again.job.id))[-1].state is JobStatus.READY


@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR_FSYNC"])
async def test_a_disk_in_trouble_is_logged_once_and_so_is_its_recovery(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    measurements = "cpu-a", {"s": StageLatency(1.0, 0.1, 5)}
    with taking_no_commits(server.store, name):
        for _ in range(5):
            with pytest.raises(DiskFailure):
                server.store.put_latencies(*measurements)
            assert server.store.models() == [], "reading goes on"
    server.store.put_latencies(*measurements)

    lines = [r.getMessage() for r in caplog.records if r.name == "braid.store"]
    assert len(lines) == 2
    assert "the store cannot be written" in lines[0]
    assert "the store can be written again" in lines[1]


async def test_an_upload_that_cannot_even_begin_is_told_why(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        with pytest.raises(DiskFailure):
            await server.register()

    assert (await server.register()).is_new_job, "its place is free again"
