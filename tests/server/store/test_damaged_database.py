import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from braid.core.errors import DiskFailure, StartupError
from braid.server.store.database import sqlite_file
from braid.server.store.quota import StoreLimits
from braid.server.store.records import JobRecord, JobStatus, ModelVersion
from braid.server.store.store import Store
from braid.server.store.tables.schema import metadata
from tests.attack.strange_files import bound
from tests.server.store.databases import execute, files_in, url_of
from tests.server.store.registering import end, import_done, register

NOBODY = 65534
PAGE = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was stopped, with rows on many pages."""
    root = tmp_path_factory.mktemp("sound") / "store"
    store = Store.open(root, StoreLimits(max_uploads=100))
    import_done(store, register(store, "imported").model.sha256)
    for number in range(20):
        made = register(store, f"model-{number}", str(number).encode())
        end(store, made, JobStatus.FAILED)
    store.close()
    return root


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "store"))


@pytest.fixture
def killed(sound: Path, tmp_path: Path) -> Path:
    """A store whose server was killed: the newest rows are in the log only."""
    shutil.copytree(sound, tmp_path / "running")
    store = Store.open(tmp_path / "running")
    register(store, "in-the-log", b"a newer model")
    copy = Path(shutil.copytree(tmp_path / "running", tmp_path / "store"))
    store.close()
    return copy


Rows = tuple[list[ModelVersion], list[JobRecord]]


def rows_of(root: Path) -> Rows:
    store = Store.open(root)
    try:
        return store.models(), store.jobs()
    finally:
        store.close()


def names_in(root: Path) -> set[str]:
    return {model.name for model in rows_of(root)[0]}


def rows_or_refusal(root: Path) -> Rows | str:
    try:
        return rows_of(root)
    except StartupError as error:
        return str(error)


def assert_refused(root: Path, words: str) -> None:
    """The start is refused in a line with these words, and leaves all as it is."""
    files, database = files_in(root), root / "braid.db"
    content = database.read_bytes() if database.is_file() else None

    with pytest.raises(StartupError, match=words) as refused:
        Store.open(root)

    message = str(refused.value)
    assert "\n" not in message
    assert "braid.db" in message
    assert files_in(root) == files
    assert (database.read_bytes() if database.is_file() else None) == content


Damage = Callable[[Path], object]


def shortened(database: Path, size: int) -> None:
    os.truncate(database, size)


def in_place(make: Callable[[Path], object]) -> Damage:
    def damage(database: Path) -> None:
        database.unlink()
        make(database)

    return damage


def beside(ending: str, make: Callable[[Path], object]) -> Damage:
    def damage(database: Path) -> None:
        path = database.with_name(database.name + ending)
        path.unlink(missing_ok=True)
        make(path)

    return damage


def foreign(database: Path) -> None:
    with closing(sqlite3.connect(database)) as other, other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")


def moved(database: Path) -> None:
    """To another folder, without its log."""
    elsewhere = database.parent.with_name("elsewhere")
    elsewhere.mkdir()
    database.rename(elsewhere / "braid.db")
    database.symlink_to(elsewhere / "braid.db")
    database.with_name("braid.db-wal").write_bytes(b"x" * 100)


DAMAGES: Mapping[str, tuple[Damage, str]] = {
    "half of it": (lambda d: shortened(d, d.stat().st_size // 2), "is damaged"),
    "half of a page": (lambda d: shortened(d, PAGE // 2), "is damaged"),
    "one byte": (lambda d: shortened(d, 1), "knows none of the files of models"),
    "one page": (lambda d: shortened(d, PAGE), "is damaged"),
    "zeros": (lambda d: d.write_bytes(bytes(d.stat().st_size)), "is damaged"),
    "text": (lambda d: d.write_text("not a database\n" * 500), "file is not a database"),
    "another program's": (in_place(foreign), "bookmarks: it is damaged or another program's"),
    "a folder": (in_place(Path.mkdir), "is no regular file"),
    "a pipe": (in_place(os.mkfifo), "is no regular file"),
    "a socket": (in_place(bound), "is no regular file"),
    "a device": (in_place(lambda d: d.symlink_to("/dev/zero")), "is no regular file"),
    "a link to nowhere": (in_place(lambda d: d.symlink_to(d.with_name("gone"))), "is missing, and"),
    "a link to itself": (in_place(lambda d: d.symlink_to(d)), "is no regular file"),
    "a link without the log": (moved, "is a link, and braid.db-wal is not beside"),
    "a folder for its log": (beside("-wal", Path.mkdir), "wal is no regular file"),
    "a pipe for its log": (beside("-wal", os.mkfifo), "wal is no regular file"),
    "a pipe for its index": (beside("-shm", os.mkfifo), "shm is no regular file"),
    "a link for its log": (
        beside("-wal", lambda path: path.symlink_to("/etc/hostname")),
        "wal is no regular file",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_no_sound_database_is_refused(root: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    damage(root / "braid.db")

    assert_refused(root, words)


@pytest.mark.parametrize("content", ["zeros", "noise", "another page"])
def test_a_page_that_was_overwritten_is_noticed_or_costs_no_row(
    root: Path, sound: Path, content: str
) -> None:
    database, noise = root / "braid.db", random.Random(1)
    pages, whole, rows = database.stat().st_size // PAGE, database.read_bytes(), rows_of(sound)
    noticed = 0
    for page in range(pages):
        other = whole[(page + 1) % pages * PAGE :][:PAGE]
        wrong = {"zeros": bytes(PAGE), "noise": noise.randbytes(PAGE), "another page": other}
        for path in root.glob("braid.db*"):
            path.unlink()
        database.write_bytes(whole[: page * PAGE] + wrong[content] + whole[(page + 1) * PAGE :])
        found = rows_or_refusal(root)
        assert found == rows or "damaged" in str(found), page
        noticed += found != rows
    assert noticed > pages / 2


@pytest.mark.parametrize("table", sorted(metadata.tables))
def test_a_table_that_is_gone_is_named(root: Path, table: str) -> None:
    with closing(sqlite3.connect(root / "braid.db")) as database, database:
        database.execute(f"DROP TABLE {table}")

    assert_refused(root, f"it lacks {table}|no such table: {table}|has no {table}, but .* damaged")


def test_a_column_that_is_gone_is_named(store: Store) -> None:
    store.close()
    execute(url_of(store), "ALTER TABLE models DROP COLUMN message")

    with pytest.raises(StartupError, match=r"is damaged: it lacks models.message; restore"):
        Store.open(store.folder.root, database=url_of(store))


@pytest.mark.parametrize("statement", ["SET state = 'NONE'", "SET options = '{'"])
def test_a_row_that_says_nothing_is_noticed(root: Path, statement: str) -> None:
    with closing(sqlite3.connect(root / "braid.db")) as database, database:
        database.execute(f"UPDATE models {statement} WHERE name = 'imported'")

    assert_refused(root, "is damaged: what a row says")


# A log, which SQLite reads as far as it is whole.


@pytest.mark.parametrize("content", [None, b"", b"noise" * 1000])
def test_a_log_that_was_cut_off_or_is_none_loses_only_what_it_lacks(
    killed: Path, sound: Path, content: bytes | None
) -> None:
    log = killed / "braid.db-wal"
    if content is None:
        shortened(log, log.stat().st_size - 100)
    else:
        log.write_bytes(content)
        (killed / "braid.db-shm").write_bytes(content)
    files = files_in(killed)

    assert rows_of(killed) == rows_of(sound)
    assert files_in(killed) == files


def test_a_log_of_another_database_is_not_written_into_this_one(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    database = sqlite3.connect(other)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE t (a TEXT)")
    database.execute("INSERT INTO t VALUES (?)", ("x" * 50_000,))
    database.commit()
    shutil.copy(f"{other}-wal", root / "braid.db-wal")
    database.close()

    assert_refused(root, "damaged or another program's")

    (root / "braid.db-wal").unlink()
    (root / "braid.db-shm").unlink(missing_ok=True)
    assert "imported" in names_in(root)


# How long it takes, and whose it is.


def test_a_check_that_takes_too_long_does_not_stop_a_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "CHECKS", (("quick_check", 0.0), ("integrity_check", 0.0)))
    monkeypatch.setattr(sqlite_file, "_STEPS", 1)

    assert "imported" in names_in(root)


def test_damage_that_comes_while_a_server_runs_is_told_as_the_disk_s(root: Path) -> None:
    store = Store.open(root)
    with (root / "braid.db").open("r+b") as file:
        file.write(bytes(root.joinpath("braid.db").stat().st_size))

    store.database.engine.dispose()

    with pytest.raises(DiskFailure, match="look for its errors"):
        store.models()
    store.close()


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes_in(root: Path) -> set[str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {f"{path.name} {path.stat().st_mode & 0o777:o}" for path in files}


@pytest.mark.usefixtures("usual_umask")
def test_no_other_user_can_read_a_database(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    register(store)

    modes = modes_in(tmp_path / "store")

    assert {name.partition(" ")[0] for name in modes} >= {"braid.db", "braid.db-wal", "lock"}
    assert {name.rpartition(" ")[2] for name in modes} == {"600"}
    store.close()


@pytest.mark.usefixtures("usual_umask")
def test_a_database_that_others_could_read_is_closed_to_them(killed: Path) -> None:
    for path in killed.glob("braid.db*"):
        path.chmod(0o644)

    store = Store.open(killed)

    assert {name for name in modes_in(killed) if name.startswith("braid.db") and "644" in name} == (
        set()
    )
    store.close()


@contextmanager
def as_nobody(root: Path) -> Iterator[None]:
    """Be a user for whom modes count, who owns the store."""
    if os.geteuid() != 0:
        yield
        return
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, -1, follow_symlinks=False)
    for parent in root.parents:
        if parent.stat().st_mode & 0o011 != 0o011:
            parent.chmod(parent.stat().st_mode | 0o011)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("braid.db", 0o000), ("braid.db", 0o400), ("braid.db", 0o200), (".", 0o000), (".", 0o500)],
)
def test_a_database_that_this_user_cannot_use_is_refused(root: Path, name: str, mode: int) -> None:
    with as_nobody(root):
        (root / name).chmod(mode)
        with pytest.raises(StartupError, match=r"cannot be (used|written)") as refused:
            Store.open(root)
        (root / name).chmod(0o700)

    assert "\n" not in str(refused.value)
    assert str(root) in str(refused.value)
    assert "imported" in names_in(root)
