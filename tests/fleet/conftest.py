"""A PostgreSQL and an S3 for the session; each fleet has a database and a folder of its own.

A fixture skips the tests that ask for it, in one line, where what it needs cannot be had.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fleet.stand import Stand
from tests.fleet import alone, fleet, postgres, s3
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3

LOOPBACK = "127.0.0.1"
S3_DISK_MB = 4000


def address() -> str:
    """Where this process and the machines reach what runs beside them."""
    return LOOPBACK if alone.missing() else alone.HUB


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL that runs; who stops it starts it again."""
    if why := postgres.missing():
        pytest.skip(why)
    server = Postgres(tmp_path_factory.mktemp("postgres") / "cluster", [address()]).start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 that runs; who stops it starts it again."""
    if why := s3.missing():
        pytest.skip(why)
    disk_mb = 0 if alone.missing() else S3_DISK_MB
    server = S3(tmp_path_factory.mktemp("s3") / "server", address(), disk_mb).start()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := fleet.missing():
        pytest.skip(why)
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def stand(machines: Path, postgres_server: Postgres, s3_server: S3) -> Stand:
    return Stand(machines, postgres_server, s3_server)
