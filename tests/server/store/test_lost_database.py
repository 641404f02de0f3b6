import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import URL

from braid.core.errors import StartupError
from braid.server.cli.main import main
from braid.server.store.database.opening import usual_url
from braid.server.store.store import Store
from tests.server.store.databases import SharedDatabases, files_in, reopened
from tests.server.store.registering import import_done, receive, register

ENDINGS = ("", "-wal", "-shm")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was stopped, with an upload and an artefact."""
    store = Store.open(tmp_path / "store")
    import_done(store, register(store, "imported").model.sha256)
    register(store, "waiting", b"another model")
    store.close()
    return tmp_path / "store"


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def missing(database: Path) -> None:
    database.unlink()


def empty(database: Path) -> None:
    database.write_bytes(b"")


def new(database: Path) -> None:
    """As a start without the files would make it."""
    elsewhere = database.parent.with_name("new")
    Store.open(elsewhere).close()
    shutil.copy(elsewhere / "braid.db", database)


def another(database: Path) -> None:
    elsewhere = database.parent.with_name("another")
    store = Store.open(elsewhere)
    register(store, "stranger", b"a stranger")
    store.close()
    shutil.copy(elsewhere / "braid.db", database)


@pytest.mark.parametrize("lost", [missing, empty, new, another])
def test_a_start_without_its_database_is_refused_and_loses_no_file(
    root: Path, lost: Callable[[Path], None]
) -> None:
    database, files = root / "braid.db", files_in(root)
    kept = database.read_bytes()
    lost(database)

    for _ in range(2):  # what the first start made must not let the second one through
        with pytest.raises(StartupError, match=r"; put .* or, to begin anew, move") as refused:
            Store.open(root)
        assert "\n" not in str(refused.value)
    assert files_in(root) == files

    for ending in ENDINGS:
        (root / f"braid.db{ending}").unlink(missing_ok=True)
    database.write_bytes(kept)
    store = Store.open(root)
    assert [model.name for model in store.models()] == ["imported", "waiting"]
    assert files_in(root) == files
    store.close()


@pytest.mark.parametrize("lost", [missing, empty])
def test_a_refused_start_leaves_nothing_in_the_place_of_the_database(
    root: Path, lost: Callable[[Path], None]
) -> None:
    lost(root / "braid.db")
    before = {path.name: path.stat().st_size for path in root.glob("braid.db*")}

    with pytest.raises(StartupError):
        Store.open(root)

    assert {path.name: path.stat().st_size for path in root.glob("braid.db*")} == before


@pytest.mark.parametrize("lost", [missing, empty])
def test_the_log_of_a_database_that_is_lost_stays(
    tmp_path: Path, lost: Callable[[Path], None]
) -> None:
    """SQLite would remove it: all that is in there would be gone."""
    root, copy = tmp_path / "store", tmp_path / "copy"
    store = Store.open(root)
    shutil.copytree(root, copy)  # as a server that was killed leaves it
    store.close()
    log = (copy / "braid.db-wal").read_bytes()
    assert log
    lost(copy / "braid.db")

    with pytest.raises(StartupError, match=r"and braid\.db-wal is there"):
        Store.open(copy)

    assert (copy / "braid.db-wal").read_bytes() == log


def test_a_wrong_url_of_a_shared_database_costs_no_file(
    root: Path, shared_databases: SharedDatabases
) -> None:
    files = files_in(root)

    for _ in range(2):
        with pytest.raises(StartupError, match="knows none of the files") as refused:
            Store.open(root, database=shared_databases.make())

    assert "not a secret" not in str(refused.value)
    assert files_in(root) == files


def test_an_upgrade_makes_no_database_in_the_place_of_one_that_is_lost(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRAID_STORE", str(root))
    (root / "braid.db").unlink()

    assert main(["database", "upgrade"]) == 1

    assert "is missing, and" in capsys.readouterr().err
    assert not (root / "braid.db").exists()


def test_a_database_restored_from_an_older_backup_leaves_newer_files_alone(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = root / "braid.db"
    older = database.read_bytes()
    store = Store.open(root)
    import_done(store, register(store, "newer", b"a newer model").model.sha256)
    store.close()
    newer, files = database.read_bytes(), files_in(root)
    database.write_bytes(older)

    with caplog.at_level(logging.WARNING, "braid.store"):
        for _ in range(2):
            store = Store.open(root)
            assert [model.name for model in store.models()] == ["imported", "waiting"]
            store.close()

    assert files_in(root) == files
    assert "knows nothing of are left alone" in caplog.text
    database.write_bytes(newer)
    store = Store.open(root)
    assert store.folder.has_artefact(store.find_model("newer", 1).sha256)
    store.close()


def test_an_upload_that_a_crash_cut_off_before_its_row_is_removed(store: Store) -> None:
    register(store, "other", b"another model")
    received = receive(store)
    store._adopt(received)
    assert store.folder.upload(received.sha256).exists()

    store = reopened(store)

    assert {path.name for path in store.folder.uploads.iterdir()} == {sha256_of(b"another model")}
    store.close()


def test_the_first_upload_cut_off_by_a_crash_does_not_stop_the_next_start(store: Store) -> None:
    store._adopt(receive(store))

    store = reopened(store)

    assert list(store.folder.uploads.iterdir()) == []
    store.close()


def test_names_that_are_not_the_store_s_are_left_alone(store: Store) -> None:
    strangers = [store.folder.uploads / "notes.txt", store.folder.artefacts / "lost+found" / "a"]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")

    store = reopened(store)

    assert all(path.exists() for path in strangers)
    store.close()


@pytest.fixture
def elsewhere(tmp_path: Path) -> URL:
    return usual_url(tmp_path / "data" / "braid.db")


def test_a_database_elsewhere_is_as_safe(root: Path, elsewhere: URL) -> None:
    files = files_in(root)
    assert elsewhere.database is not None
    Path(elsewhere.database).parent.mkdir()

    with pytest.raises(StartupError, match=f"is missing, and {root} holds files"):
        Store.open(root, database=elsewhere)

    assert files_in(root) == files
    assert not Path(elsewhere.database).exists()
