"""The store on real files: what survives, what is swept, who is refused."""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import event

from braid.core.errors import (
    InvalidRequest,
    InvalidUpload,
    JobNotFound,
    ModelNotFound,
    ResourceExhausted,
    StartupError,
    UploadTooLarge,
    VersionNotFound,
    WorkerFault,
)
from braid.core.plan import sequential_plan
from braid.core.schedule import Schedule, ScheduleKey, Stage
from braid.scheduler.options import PlannerOptions
from braid.server.store.quota import StoreLimits
from braid.server.store.records import (
    JobState,
    ModelState,
    ReceivedUpload,
    Registration,
    RegistrationOptions,
)
from braid.server.store.store import Store
from braid.server.store.tables.plans import Measurement

MODEL = b"a model"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "store")
    yield store
    store.close()


def receive(store: Store, content: bytes = MODEL) -> ReceivedUpload:
    async def upload() -> ReceivedUpload:
        incoming = store.receive(1000)
        await incoming.__aenter__()
        await incoming.write(content)
        return await incoming.finish(hashlib.sha256(content).hexdigest())

    return asyncio.run(upload())


def register(
    store: Store,
    name: str = "lenet",
    content: bytes = MODEL,
    options: RegistrationOptions | None = None,
    device_keys: str = "cpu-a",
) -> Registration:
    received = receive(store, content)
    try:
        return store.register(name, received, options or RegistrationOptions(), device_keys)
    finally:
        assert received.path is not None
        received.path.unlink(missing_ok=True)


def end(store: Store, made: Registration, state: JobState) -> None:
    if state is JobState.READY:
        store.set_model_state(made.model.name, made.model.version, ModelState.SERVING)
    store.end_job(replace(made.job, state=state, message="why"))


def import_done(store: Store, sha256: str) -> Path:
    folder = store.folder.artefact(sha256)
    folder.mkdir()
    (folder / "graph.json").write_text("{}")
    return folder


def reopened(store: Store) -> Store:
    store.close()
    return Store.open(store.folder.root)


# Opening.


def test_two_servers_never_share_a_store(store: Store) -> None:
    with pytest.raises(StartupError, match=f"in use by another server .process {os.getpid()}"):
        Store.open(store.folder.root)


def _hold(root: Path, held: Connection) -> None:
    Store.open(root)
    held.send(True)
    held.recv()


def test_the_lock_of_a_killed_server_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_hold, args=(tmp_path, theirs))
    server.start()
    ours.recv()
    with pytest.raises(StartupError, match=f"process {server.pid}"):
        Store.open(tmp_path)

    server.kill()
    server.join()

    Store.open(tmp_path).close()


def test_a_newer_schema_refuses_to_start(store: Store) -> None:
    store.close()
    with sqlite3.connect(store.folder.database) as connection:
        connection.execute("UPDATE meta SET schema_version = 99")
    connection.close()

    with pytest.raises(StartupError, match=r"has schema 99.*reads 3; run a newer Braid"):
        Store.open(store.folder.root)


def test_an_older_schema_is_converted(store: Store) -> None:
    made = register(store)
    why = "the model serves sequentially where no schedule was made: batch size 1: too large"
    store.end_job(replace(made.job, state=JobState.FAILED, message=why))
    store.close()
    with sqlite3.connect(store.folder.database) as connection:
        connection.execute("UPDATE meta SET schema_version = 1")
        connection.execute("DROP TABLE serving")
    connection.close()

    converted = Store.open(store.folder.root)

    assert converted.find_job(made.job.id).state is JobState.UNSCHEDULED
    assert converted.serving_configs() == {}
    converted.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to be one" * 100])
def test_a_damaged_database_refuses_to_start_with_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "braid.db").write_bytes(content)

    with pytest.raises(StartupError, match="file is not a database") as caught:
        Store.open(tmp_path)

    assert "\n" not in str(caught.value)


def test_a_store_that_cannot_be_written_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartupError, match=r"cannot be written .*choose another"):
        Store.open(tmp_path / "file")


# Uploads.


async def send(store: Store, chunks: Sequence[bytes], digest: str, limit_bytes: int) -> None:
    async with store.receive(limit_bytes) as upload:
        for chunk in chunks:
            await upload.write(chunk)
        await upload.finish(digest)


async def test_an_upload_is_checked_and_kept_only_if_registered(store: Store) -> None:
    digest = hashlib.sha256(b"ab").hexdigest()

    async with store.receive(100) as upload:
        await upload.write(b"a")
        await upload.write(b"b")
        received = await upload.finish(digest.upper())
        assert received.path is not None
        assert received.path.read_bytes() == b"ab"
        made = await store.call(store.register, "lenet", received, RegistrationOptions())
    async with store.receive(100) as upload:
        await upload.write(b"never finished")

    assert (made.model.sha256, made.model.size_bytes) == (digest, 2)
    assert [path.name for path in store.folder.uploads.iterdir()] == [digest]


@pytest.mark.parametrize(
    ("content", "digest", "problem"),
    [
        (b"", hashlib.sha256(b"").hexdigest(), "empty"),
        (b"ab", hashlib.sha256(b"a").hexdigest(), "send the file again"),
        (b"ab", "", "not 64 hexadecimal digits"),
        (b"ab", "../../etc/passwd", "not 64 hexadecimal digits"),
    ],
)
async def test_a_bad_upload_is_refused_and_leaves_no_file(
    store: Store, content: bytes, digest: str, problem: str
) -> None:
    with pytest.raises(InvalidUpload, match=problem):
        await send(store, [content], digest, limit_bytes=100)

    assert not list(store.folder.uploads.iterdir())


async def test_an_upload_over_the_limit_stops_at_the_limit(store: Store) -> None:
    with pytest.raises(UploadTooLarge, match="larger than 10 bytes"):
        await send(store, [b"123456"] * 1000, "", limit_bytes=10)

    assert not list(store.folder.uploads.iterdir())


async def test_a_full_disk_is_the_callers_to_know(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    async with store.receive(10) as upload:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ResourceExhausted, match="disk is full"):
            await upload.write(b"x")
        monkeypatch.undo()


async def test_a_cancelled_upload_leaves_no_file(store: Store) -> None:
    async def endless() -> None:
        async with store.receive(10**9) as upload:
            while True:
                await upload.write(b"x" * 100_000)

    task = asyncio.create_task(endless())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert not list(store.folder.uploads.iterdir())


# Registering.


def test_versions_count_up_and_are_never_used_again(store: Store) -> None:
    assert register(store).model.version == 1
    assert register(store, content=b"other").model.version == 2

    store.delete_model("lenet", 2)

    assert register(store, content=b"third").model.version == 3
    assert [model.version for model in store.models("lenet")] == [1, 3]


def test_registering_again_while_the_job_runs_answers_that_job(store: Store) -> None:
    first = register(store)

    again = register(store)

    assert (again.model, again.job, again.is_new_job) == (first.model, first.job, False)


def test_registering_again_when_ready_answers_the_job_that_ended(store: Store) -> None:
    first = register(store)
    import_done(store, first.model.sha256)
    end(store, first, JobState.READY)

    again = register(store)

    assert (again.job.id, again.job.state) == (first.job.id, JobState.READY)
    assert not again.is_new_job


def test_ready_on_another_device_is_not_ready_here(store: Store) -> None:
    first = register(store)
    end(store, first, JobState.READY)

    again = register(store, device_keys="cpu-b")

    assert again.is_new_job
    assert again.model.version == first.model.version


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_registering_again_after_a_failure_tries_the_same_version_again(
    store: Store, state: JobState
) -> None:
    first = register(store)
    end(store, first, state)
    failed = store.find_model("lenet", 1)
    assert (failed.state, failed.message) == (ModelState.FAILED, "why")

    again = register(store)

    assert again.is_new_job
    assert (again.model.version, again.model.state) == (1, ModelState.LOADING)
    assert store.find_model("lenet", 1).message == ""


@pytest.mark.parametrize(
    "options",
    [
        RegistrationOptions(batch_sizes=(1, 4)),
        RegistrationOptions(planner=PlannerOptions("ios", max_groups=2)),
        RegistrationOptions(input_shapes={"x": (1, 3, 48, 320)}),
        RegistrationOptions(precision="tf32"),
        RegistrationOptions(precision="fp16", accepted_error=0.02),
    ],
)
def test_other_options_are_another_version(store: Store, options: RegistrationOptions) -> None:
    register(store)

    assert register(store, options=options).model.version == 2
    assert register(store, options=options).model.options == options


def test_a_version_that_is_being_deleted_is_not_answered(store: Store) -> None:
    register(store)
    store.set_model_state("lenet", 1, ModelState.DRAINING)

    assert register(store).model.version == 2


@pytest.mark.parametrize("name", ["", "a/b", "../a", "-a", "_unknown", "a\n", "a" * 129, "ä"])
def test_a_name_that_could_do_harm_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not 1 to 128 letters"):
        register(store, name)


@pytest.mark.parametrize("sizes", [(0,), (-1, 4), (5000,), tuple(range(1, 40))])
def test_batch_sizes_are_bounded(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="batch sizes"):
        RegistrationOptions(batch_sizes=sizes)


def test_batch_sizes_are_sorted_and_distinct() -> None:
    assert RegistrationOptions(batch_sizes=(8, 1, 8)).batch_sizes == (1, 8)
    assert RegistrationOptions(batch_sizes=()).batch_sizes == (1,)


# Finding.


def test_what_is_not_there_is_named(store: Store) -> None:
    register(store)

    with pytest.raises(ModelNotFound, match="'resnet'"):
        store.find_model("resnet", 1)
    with pytest.raises(VersionNotFound, match="no version '7'; versions: 1"):
        store.find_model("lenet", 7)
    with pytest.raises(JobNotFound, match="'abc'"):
        store.find_job("abc")


def test_jobs_are_listed_newest_first_and_resumed_oldest_first(store: Store) -> None:
    made = [register(store, name).job.id for name in ("a", "b", "c")]

    assert [job.id for job in store.jobs()] == made[::-1]
    assert [job.id for job in store.jobs(limit=2)] == made[:0:-1]
    assert [job.id for job in store.jobs("b")] == [made[1]]
    assert [job.id for job in store.unfinished_jobs()] == made
    assert store.count_jobs()["QUEUED"] == 3


def test_a_job_that_ended_never_changes_again(store: Store) -> None:
    made = register(store)
    end(store, made, JobState.CANCELLED)

    end(store, made, JobState.READY)
    store.save_job(made.job)

    assert store.find_job(made.job.id).state is JobState.CANCELLED


# Schedules and measurements.


def schedule(batch_size: int = 1, latency_us: float = 5.0) -> Schedule:
    key = ScheduleKey("ab" * 32, "cpu-a", batch_size)
    stage = Stage(((0,), (1,)), latency_us=latency_us)
    return Schedule(key, "ios", sequential_plan(2), (stage,), ("conv", "pool"))


def test_keys_without_an_accepted_error_are_what_they_were_before_there_was_one() -> None:
    plain, accepting = (ScheduleKey("ab" * 32, "cpu", 1, accepted_error=e) for e in (None, 0.1))

    assert plain.id == "8cccba11fecb07e067f5c680"
    assert plain.id != accepting.id
    assert ScheduleKey(**accepting.to_json()) == accepting


def test_a_schedule_is_found_again_under_its_key_and_model(store: Store) -> None:
    for each in (schedule(4), schedule(1), schedule(4, latency_us=3.0)):
        store.put_schedule(each)

    store = reopened(store)

    assert store.find_schedule(schedule(4).key.id) == schedule(4, latency_us=3.0)
    assert [each.key.batch_size for each in store.schedules_of("ab" * 32)] == [1, 4]
    assert store.schedules_of("ab" * 32, "cpu-b") == []
    store.forget_schedule(schedule(4).key.id)
    assert store.find_schedule(schedule(4).key.id) is None
    store.close()


def test_a_schedule_changed_on_disk_counts_as_none(store: Store) -> None:
    store.put_schedule(schedule())
    store.close()
    with sqlite3.connect(store.folder.database) as connection:
        connection.execute("UPDATE schedules SET schedule = replace(schedule, '5.0', '1.0')")
    connection.close()

    store = Store.open(store.folder.root)

    assert store.find_schedule(schedule().key.id) is None
    assert store.schedules_of("ab" * 32) == []
    store.close()


def test_latencies_are_kept_by_device_and_signature(store: Store) -> None:
    store.put_measurement(Measurement("cpu-a", "s1", 10.0, 0.1, 5))
    store.put_measurement(Measurement("cpu-a", "s1", 12.0, 0.1, 5))
    store.put_measurement(Measurement("cpu-b", "s1", 99.0, 0.1, 5))

    store = reopened(store)

    wanted = ["s1", *(f"none-{n}" for n in range(2000))]
    assert store.find_latencies("cpu-a", wanted) == {"s1": 12.0}
    store.close()


def test_a_latency_of_zero_is_never_stored_and_thrown_out_where_it_was(store: Store) -> None:
    for latency_us in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(WorkerFault, match="cannot be"):
            Measurement("cpu-a", "s1", latency_us, 0.1, 5)
    store.put_measurement(Measurement("cpu-a", "s1", 10.0, 0.1, 5))
    store.put_measurement(Measurement("cpu-a", "s2", 12.0, 0.1, 5))
    store.close()
    with sqlite3.connect(store.folder.database) as connection:  # as earlier versions did
        connection.execute("UPDATE measurements SET latency_us = 0.0 WHERE signature = 's1'")
    connection.close()

    store = Store.open(store.folder.root)

    assert store.find_latencies("cpu-a", ["s1", "s2"]) == {"s2": 12.0}
    store.close()


def test_a_full_disk_loses_nothing_and_says_so(store: Store) -> None:
    register(store)

    @event.listens_for(store._engine, "begin")
    def no_more_pages(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")

    def fill() -> None:
        for number in range(10_000):
            store.put_measurement(Measurement("cpu-a" * 50, f"s{number}", 1.0, 0.1, 5))

    with pytest.raises(ResourceExhausted, match=r"disk is full .*; free some space"):
        fill()

    event.remove(store._engine, "begin", no_more_pages)
    assert store.find_latencies("cpu-a" * 50, ["s0"]) == {"s0": 1.0}
    assert len(store.unfinished_jobs()) == 1


# Recovery and deletion.


def test_a_start_removes_exactly_what_a_crash_left_behind(store: Store) -> None:
    waiting = register(store, "waiting", b"1").model.sha256
    imported = register(store, "imported", b"2").model.sha256
    import_done(store, imported)
    deleted = register(store, "deleted", b"3")
    store.delete_model("deleted", deleted.model.version)
    import_done(store, deleted.model.sha256)
    receive(store, b"4")
    for name in (".import-x", ".gone-y"):
        (store.folder.artefacts / name / "deep").mkdir(parents=True)

    store = reopened(store)

    # A job looks at the artefact itself, and would need the upload if that were damaged.
    assert {path.name for path in store.folder.uploads.iterdir()} == {waiting, imported}
    assert {path.name for path in store.folder.artefacts.iterdir()} == {imported}
    store.close()


def test_a_deletion_cut_off_by_a_crash_is_finished(store: Store) -> None:
    made = register(store)
    import_done(store, made.model.sha256)
    store.set_model_state("lenet", 1, ModelState.DRAINING)

    store = reopened(store)

    assert store.models() == []
    assert not store.folder.has_artefact(made.model.sha256)
    store.close()


def test_an_artefact_goes_with_the_last_model_that_needs_it(store: Store) -> None:
    digest = register(store, "a").model.sha256
    import_done(store, digest)
    register(store, "b")

    store.delete_model("a", 1)
    assert store.folder.has_artefact(digest)
    store.delete_model("b", 1)

    assert not list(store.folder.artefacts.iterdir())
    assert not list(store.folder.uploads.iterdir())


def test_an_upload_goes_when_no_job_needs_it(store: Store) -> None:
    first, second = register(store, "a"), register(store, "b")
    path = store.folder.upload(first.model.sha256)

    end(store, first, JobState.FAILED)
    store.discard_upload(first.model.sha256)
    assert path.exists()
    end(store, second, JobState.FAILED)
    store.discard_upload(first.model.sha256)

    assert not path.exists()


def test_old_jobs_are_forgotten_and_unfinished_ones_never(store: Store) -> None:
    made = [register(store, name) for name in "abcde"]
    for each in made[1:]:
        end(store, each, JobState.READY)

    store.close()
    store = Store.open(store.folder.root, StoreLimits(kept_jobs=2))

    assert [job.model for job in store.jobs()] == ["e", "d", "a"]
    store.close()
