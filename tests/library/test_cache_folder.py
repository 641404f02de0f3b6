"""The folder of compilations: what is damaged is made again, what earlier versions left is used."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import braid
from braid.compiler.options import ModelOptions
from braid.compiler.result_files import ResultFiles
from braid.core.errors import StartupError
from braid.library.cache_folder import KEPT_ARTEFACTS, CacheFolder
from braid.server.store.store import Store
from tests.server.store.earlier import put_into_rows, rows_in
from tests.server.store.registering import register

OPTIONS = json.dumps(ModelOptions().to_json())


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


@pytest.fixture
def earlier(net: braid.Network, copy: Path) -> Path:
    """A folder that the library of 2f0059c compiled ``net`` into."""
    put_into_rows(copy)
    (copy / "compiled").rename(copy / "artefacts")
    digest = net.schedule.document.key.model_digest
    with closing(sqlite3.connect(copy / "braid.db")) as rows, rows:
        values = f"compiled-{digest[:16]}", digest, OPTIONS
        rows.execute(
            "INSERT INTO models VALUES (?, 1, ?, 1000, ?, 'UNLOADED', '', 1.5, NULL)", values
        )
    return copy


def check_nothing_is_measured(net: braid.Network, model: Path, folder: Path) -> None:
    before = ResultFiles(folder).measurements(net.schedule.document.key.device_key)
    with braid.compile(model, batch_sizes=[1, 4], store=folder) as again:
        documents = {size: one.document for size, one in again.schedules.items()}
    assert documents == {size: one.document for size, one in net.schedules.items()}
    assert ResultFiles(folder).measurements(net.schedule.document.key.device_key) == before


@pytest.mark.ci
def test_a_folder_of_an_earlier_version_is_converted_and_nothing_is_measured_again(
    net: braid.Network, model: Path, store: Path, earlier: Path
) -> None:
    files = ResultFiles(store)
    device_key = net.schedule.document.key.device_key
    artefact = (earlier / "artefacts" / net.schedule.document.key.model_digest).stat()

    folder = opened(earlier)

    assert folder.results.all_latencies(device_key) == files.all_latencies(device_key)
    assert os.path.samestat(
        folder.artefact(net.schedule.document.key.model_digest).stat(), artefact
    )
    assert {path.name for path in earlier.iterdir()} <= {
        "compiled", "compiling", "lock", "measurements", "schedules",
    }  # fmt: skip
    check_nothing_is_measured(net, model, earlier)


def test_the_database_of_a_server_stays_for_the_server(net: braid.Network, earlier: Path) -> None:
    with closing(sqlite3.connect(earlier / "braid.db")) as rows, rows:
        other = "INSERT INTO models VALUES ('lenet', 1, ?, 9, ?, 'UNLOADED', '', 1.5, NULL)"
        rows.execute(other, ["cd" * 32, OPTIONS])

    folder = opened(earlier)

    assert rows_in(earlier) == [0, 0, 0]
    schedule = net.schedules[4].document
    assert folder.results.find_schedule(schedule.key) == schedule
    assert (earlier / "artefacts" / schedule.key.model_digest).is_dir()
    server = Store.open(earlier)
    assert server.find_schedule(schedule.key) == schedule
    assert [model.name for model in server.models()][-1] == "lenet"
    server.close()


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
