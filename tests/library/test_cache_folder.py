import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import braid
from braid.compiler.result_files import ResultFiles
from braid.core.errors import StartupError
from braid.library.cache_folder import KEPT_ARTEFACTS, CacheFolder
from braid.server.store.store import Store
from tests.server.store.registering import register


def opened(root: Path) -> CacheFolder:
    """The folder as it is once a compilation has it."""

    async def open_it() -> CacheFolder:
        async with CacheFolder.open(root) as folder:
            return folder

    return asyncio.run(open_it())


@pytest.fixture
def copy(net: braid.Network, store: Path, tmp_path: Path) -> Path:
    """A copy of the folder that ``net`` was compiled into."""
    assert net.schedules
    return Path(shutil.copytree(store, tmp_path / "copy"))


@pytest.mark.parametrize("revision", ["0002", "0003"])
def test_a_folder_that_is_too_old_is_refused_in_one_line(tmp_path: Path, revision: str) -> None:
    Store.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "braid.db")) as rows, rows:
        rows.execute("UPDATE alembic_version SET version_num = ?", [revision])

    with pytest.raises(StartupError, match=rf"revision {revision}; .* 0004\); choose") as caught:
        opened(tmp_path)

    assert "\n" not in str(caught.value)


def test_a_server_that_runs_on_the_folder_goes_on(tmp_path: Path, net: braid.Network) -> None:
    server = Store.open(tmp_path)
    register(server)
    schedule = net.schedules[4].document

    opened(tmp_path).results.put_schedule(schedule)

    assert server.find_schedule(schedule.key) == schedule
    assert [model.name for model in server.models()] == ["lenet"]
    server.close()


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(4096)])
def test_a_damaged_database_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "braid.db").write_bytes(content)

    with pytest.raises(StartupError, match=r"braid\.db cannot be read .*; remove it") as caught:
        opened(tmp_path)

    assert "\n" not in str(caught.value)
    assert (tmp_path / "braid.db").read_bytes() == content


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartupError, match="cannot be written"):
        opened(tmp_path / "file" / "store")


def test_the_artefacts_that_were_used_last_are_kept_and_leftovers_are_not(tmp_path: Path) -> None:
    names = [f"{number:064x}" for number in range(KEPT_ARTEFACTS + 5)]
    for age, name in enumerate(reversed(names)):
        (tmp_path / "compiled" / name).mkdir(parents=True)
        os.utime(tmp_path / "compiled" / name, (1000.0 - age, 1000.0 - age))
    (tmp_path / "compiled" / ".import-1234").mkdir()
    (tmp_path / "compiled" / ".work-1234").touch()

    opened(tmp_path)

    assert sorted(path.name for path in (tmp_path / "compiled").iterdir()) == names[5:]


@pytest.mark.ci
def test_damaged_files_are_made_again_and_others_are_used(
    net: braid.Network, model: Path, copy: Path
) -> None:
    key = net.schedules[4].document.key
    path = copy / "schedules" / key.model_digest / f"{key.id}.json"
    os.truncate(path, path.stat().st_size - 100)
    (copy / "compiled" / key.model_digest / "graph.json").write_text("{}")

    with braid.compile(model, batch_sizes=[1, 4], store=copy) as again:
        assert again.schedule.document == net.schedule.document
        made = again.schedules[4].document
        assert made.key == key
        assert ResultFiles(copy).find_schedule(key) == made
        assert made.provenance.created != ""
        assert again.plan_ids.keys() == net.plan_ids.keys()
