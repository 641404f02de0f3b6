"""Databases of stores under test, and what lies in them."""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url

from braid.server.store.quota import StoreLimits
from braid.server.store.store import Store
from tests.fleet import postgres
from tests.fleet.postgres import Postgres

_clean = multiprocessing.get_context("forkserver")
_clean.set_forkserver_preload(
    [f"tests.server.store.{each}" for each in ("test_migrations", "test_shared_database")]
)


class SharedDatabases:
    """A PostgreSQL with empty databases; each is made as a copy of one with all tables."""

    def __init__(self, folder: Path) -> None:
        if why := postgres.missing():
            pytest.skip(why)
        self.server = Postgres(folder).start()
        # Each database adds to how often it starts a process; the tests make hundreds.
        self.server.execute("ALTER SYSTEM SET autovacuum TO off")
        self.server.execute("SELECT pg_reload_conf()")
        self._made = 0
        self._template = make_url(self.server.create("with_tables"))
        Store.open(folder.parent / "template", database=self._template).close()

    def make(self, *, with_tables: bool = True) -> URL:
        self._made += 1
        name = f"store_{self._made}"
        template = self._template.database if with_tables else "template1"
        self.server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return make_url(self.server.url(name))

    def close(self) -> None:
        self.server.remove()


def url_of(store: Store) -> URL:
    return store._database.engine.url


def reopened(store: Store, limits: StoreLimits | None = None) -> Store:
    """The same store after a restart of its server."""
    store.close()
    return type(store).open(store.folder.root, limits, url_of(store))


def files_in(root: Path) -> dict[str, bytes]:
    """Contents of a store beside its database."""
    folders = ("uploads", "artefacts", "samples")
    found = (path for folder in folders for path in (root / folder).rglob("*"))
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.is_file()}


def execute(url: URL, *statements: str) -> list[Any]:
    """Run statements in a database that no store uses; returns the rows of the last one."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        rows = list(result) if result.returns_rows else []
    engine.dispose()
    return rows


def exit_codes(call: Callable[..., object], each: Sequence[tuple[object, ...]]) -> list[int | None]:
    """Exit codes of processes that make a call at the same time, each with its own arguments.

    They are no forks of this process: one of a process that has used gRPC may hang when it frees
    what it took over, and one that has threads when it waits for a lock that one of them held.
    """
    processes = [_clean.Process(target=call, args=arguments) for arguments in each]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


@contextmanager
def full_disk(databases: SharedDatabases) -> Iterator[tuple[URL, Callable[[], None]]]:
    """Make a database on a disk with little room; skips where no disk can be mounted.

    Yields its URL, and a function that gives the disk more room.
    """
    folder = Path(tempfile.mkdtemp(prefix="braid-disk-"))
    mounting = ["mount", "-t", "tmpfs", "-o", "size=11m", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("no disk can be mounted here")
    server = databases.server
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        server.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        server.execute("CREATE DATABASE small TABLESPACE small")
        more = ["mount", "-o", "remount,size=32m", str(folder)]
        yield make_url(server.url("small")), lambda: _run(more)
        server.execute("DROP DATABASE small WITH (FORCE)")
        server.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
        folder.rmdir()


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)
