import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from sqlalchemy import URL

from braid.compiler.options import ModelOptions
from braid.core.errors import (
    InvalidRequest,
    JobNotFound,
    ModelNotFound,
    StartupError,
    VersionNotFound,
)
from braid.scheduler.options import PlannerSettings
from braid.server.app.front_end import FrontEnd
from braid.server.settings import load_settings
from braid.server.store.database.opening import usual_url
from braid.server.store.quota import StoreLimits
from braid.server.store.records import JobStatus, ModelStatus
from braid.server.store.store import Store
from tests.server.store.databases import execute, reopened, url_of
from tests.server.store.registering import end, import_done, receive, register

# Opening.


def test_two_servers_never_share_a_store(store: Store) -> None:
    with pytest.raises(StartupError, match=f"in use by another server .process {os.getpid()}"):
        Store.open(store.folder.root, database=url_of(store))


def test_two_servers_never_share_a_sqlite_database_from_two_folders(tmp_path: Path) -> None:
    url = usual_url(tmp_path / "elsewhere.db")
    store = Store.open(tmp_path / "a", database=url)

    with pytest.raises(StartupError, match=r"elsewhere.db is in use by another server"):
        Store.open(tmp_path / "b", database=url)

    store.close()
    Store.open(tmp_path / "b", database=url).close()


def test_a_start_that_is_refused_once_its_store_is_open_lets_go_of_it(tmp_path: Path) -> None:
    settings = load_settings({"store": tmp_path, "host": "0.0.0.0"})

    with pytest.raises(StartupError, match="BRAID_ALLOW_UNAUTHENTICATED") as refused:
        FrontEnd(settings)

    Store.open(tmp_path).close()
    assert "\n" not in str(refused.value)  # which holds the frames, so nothing was collected


def test_a_start_without_its_shared_files_lets_go_of_the_store(
    shared_database: URL, tmp_path: Path
) -> None:
    shared = {
        "database": shared_database.render_as_string(hide_password=False),
        "files": "s3://models",
        "files_credentials_file": tmp_path / "missing",
    }
    settings = load_settings({"store": tmp_path, **shared})

    with pytest.raises(StartupError, match="BRAID_FILES_CREDENTIALS_FILE") as refused:
        FrontEnd(settings)

    Store.open(tmp_path, database=shared_database).close()
    assert "\n" not in str(refused.value)


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


def test_a_store_that_cannot_be_written_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartupError, match=r"cannot be written .*choose another"):
        Store.open(tmp_path / "file")


@pytest.mark.parametrize("name", ["uploads", "artefacts", "samples", "lock"])
def test_something_else_in_the_place_of_a_part_of_a_store_is_named(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "store").mkdir()
    os.mkfifo(tmp_path / "store" / name)

    with pytest.raises(StartupError, match=rf"{name}: it is no (folder|regular file)"):
        Store.open(tmp_path / "store")


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "store" / "lock").symlink_to(tmp_path / "precious")

    with pytest.raises(StartupError, match="lock: it is a link; remove it"):
        Store.open(tmp_path / "store")

    assert (tmp_path / "precious").read_text() == "kept"


def test_a_link_to_the_database_of_another_store_in_use_is_refused(
    sqlite_store: Store, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "braid.db").symlink_to(sqlite_store.folder.database)

    with pytest.raises(StartupError, match="in use by another server"):
        Store.open(tmp_path / "other")


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
    end(store, first, JobStatus.READY)

    again = register(store)

    assert (again.job.id, again.job.state) == (first.job.id, JobStatus.READY)
    assert not again.is_new_job


def test_ready_on_another_device_is_not_ready_here(store: Store) -> None:
    first = register(store)
    end(store, first, JobStatus.READY)

    again = register(store, device_keys="cpu-b")

    assert again.is_new_job
    assert again.model.version == first.model.version


@pytest.mark.parametrize("state", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_registering_again_after_a_failure_tries_the_same_version_again(
    store: Store, state: JobStatus
) -> None:
    first = register(store)
    end(store, first, state)
    failed = store.find_model("lenet", 1)
    assert (failed.state, failed.message) == (ModelStatus.FAILED, "why")

    again = register(store)

    assert again.is_new_job
    assert (again.model.version, again.model.state) == (1, ModelStatus.LOADING)
    assert store.find_model("lenet", 1).message == ""


@pytest.mark.parametrize(
    "options",
    [
        ModelOptions(batch_sizes=(1, 4)),
        ModelOptions(planner=PlannerSettings("ios", max_groups=2)),
        ModelOptions(input_shapes={"x": (1, 3, 48, 320)}),
        ModelOptions(precision="tf32"),
        ModelOptions(precision="fp16", accepted_error=0.02),
        ModelOptions(pad={"length": "repeat"}),
        ModelOptions(no_pad=True),
        ModelOptions(input_shapes={"x": (1, 8)}, more_shapes=({"x": (1, 9)}, {"x": (1, 7)})),
        ModelOptions(lengths="16,32"),
    ],
)
def test_other_options_are_another_version(store: Store, options: ModelOptions) -> None:
    register(store)

    assert register(store, options=options).model.version == 2
    assert register(store, options=options).model.options == options


def test_a_version_that_is_being_deleted_is_not_answered(store: Store) -> None:
    register(store)
    store.set_model_state("lenet", 1, ModelStatus.DRAINING)

    assert register(store).model.version == 2


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "-a", "_unknown", "a\n", "a" * 129, "ä"])
def test_a_name_that_could_do_harm_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not 1 to 128 letters"):
        register(store, name)


@pytest.mark.parametrize("sizes", [(0,), (-1, 4), (5000,), tuple(range(1, 40))])
def test_batch_sizes_are_bounded(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="batch sizes"):
        ModelOptions(batch_sizes=sizes)


def test_batch_sizes_are_sorted_and_distinct() -> None:
    assert ModelOptions(batch_sizes=(8, 1, 8)).batch_sizes == (1, 8)
    assert ModelOptions().batch_sizes == ()  # 1, and what pays


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
    end(store, made, JobStatus.CANCELLED)

    end(store, made, JobStatus.READY)
    store.save_job(made.job)

    assert store.find_job(made.job.id).state is JobStatus.CANCELLED


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


def test_a_deletion_cut_off_by_a_crash_is_finished(sqlite_store: Store) -> None:
    store = sqlite_store
    made = register(store)
    import_done(store, made.model.sha256)
    store.set_model_state("lenet", 1, ModelStatus.DRAINING)

    store = reopened(store)

    assert store.models() == []
    assert not store.folder.has_artefact(made.model.sha256)
    store.close()


def test_an_upload_goes_when_no_job_needs_it(store: Store) -> None:
    first, second = register(store, "a"), register(store, "b")
    path = store.folder.upload(first.model.sha256)

    end(store, first, JobStatus.FAILED)
    store.discard_upload(first.model.sha256)
    assert path.exists()
    end(store, second, JobStatus.FAILED)
    store.discard_upload(first.model.sha256)

    assert not path.exists()


def test_old_jobs_are_forgotten_and_unfinished_ones_never(store: Store) -> None:
    made = [register(store, name) for name in "abcde"]
    for each in made[1:]:
        end(store, each, JobStatus.READY)

    store = reopened(store, StoreLimits(kept_jobs=2))

    assert [job.model for job in store.jobs()] == ["e", "d", "a"]
    store.close()


# Padding.


@pytest.mark.parametrize(
    ("seen", "failure"), [('"chosen": [8]', ""), ('"padding_failure": "an error"', "an error")]
)
def test_what_was_stored_of_lengths_is_read_for_padding_alone(
    store: Store, seen: str, failure: str
) -> None:
    model = register(store).model
    store.close()
    row = f"'lenet', 1, '{model.sha256}', '{{\"rows\": {{\"8\": 1}}, {seen}}}'"
    columns = "name, version, sha256, seen"
    execute(url_of(store), f"INSERT INTO lengths ({columns}) VALUES ({row})")

    store = reopened(store)

    assert store.padding_failure(model) == failure
    store.refuse_padding(model, "another one")
    assert store.padding_failure(model) == (failure or "another one")
    store.close()
