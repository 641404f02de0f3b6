"""One cluster for all tests: starting it takes longer than most of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.conftest import postgres_server, s3_server  # noqa: F401
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3
from tests.ray import cluster as machines
from tests.ray.cluster import Cluster
from tests.ray.redis import Redis


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,  # noqa: F811
    s3_server: S3,  # noqa: F811
) -> Iterator[Cluster]:
    """Three machines of Ray that serve; who kills one brings it back."""
    if why := machines.missing():
        pytest.skip(why)
    folder: Path = tmp_path_factory.mktemp("cluster")
    redis = None if Redis.missing() else Redis(folder / "redis").start()
    try:
        with Cluster(folder, postgres_server, s3_server, redis) as running:
            yield running.start()
    finally:
        if redis is not None:
            redis.stop()
