"""What ``braid serve`` changes on one node, another one serves: two processes on one PostgreSQL."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import make_url

from braid.server.fleet.store import FleetStore
from braid_client import BraidError, Client, FailedPrecondition, ModelNotFound, PlanContest
from tests import ROOT
from tests.clock import until
from tests.fleet.postgres import Postgres
from tests.models.small import small_cnn
from tests.service.contests import let_compete
from tests.service.server_process import BRAID, ServerProcess

pytestmark = pytest.mark.fleet

X = np.random.default_rng(7).standard_normal((1, 3, 16, 16)).astype(np.float32)


class Pair:
    """Two servers with stores of their own, one database, and one folder of shared files."""

    def __init__(self, folder: Path, postgres: Postgres, database: str) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self.repository.mkdir()
        self.url = postgres.create(database)
        self._environment = {
            "BRAID_DATABASE": self.url,
            "BRAID_FILES": str(folder / "files"),
            "BRAID_LEASE_SECONDS": "3600",  # what is not told is not followed
            "BRAID_THREADS": "1",
        }
        settings = ["--model-repository", str(self.repository)]
        self.a = self._server("a", settings)
        self.b = self._server("b")

    def _server(self, name: str, arguments: list[str] | None = None) -> ServerProcess:
        environment = {**self._environment, "BRAID_NODE_NAME": name}
        store = self.folder / name
        own = arguments or []
        return ServerProcess(store, command=BRAID, folder=ROOT, arguments=own, **environment)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"), postgres_server, "changes")
    with ExitStack() as started:
        for server in (pair.a, pair.b):
            started.callback(server.end)
            server.start()
        yield pair


@contextmanager
def clients(pair: Pair) -> Iterator[tuple[Client, Client]]:
    with pair.a.client() as a, pair.b.client() as b:
        yield a, b


def answers(client: Client, name: str, version: str | None = None) -> str:
    """The version that answers, or the kind of the error."""
    try:
        return client.infer(name, {"x": X}, version=version).version
    except BraidError as error:
        return type(error).__name__


def test_each_change_on_one_node_is_followed_by_the_other(pair: Pair) -> None:
    file = small_cnn(pair.folder / "one.onnx")
    other = small_cnn(pair.folder / "two.onnx", branches=2)
    with clients(pair) as (a, b):
        a.register("net", file, batch_sizes=[1], planner="sequential", wait=True)
        until(lambda: answers(b, "net") == "1")
        b.register("net", other, batch_sizes=[1], planner="sequential", wait=True)
        until(lambda: answers(a, "net") == "2")

        a.set_serving("net", replace(a.serving("net"), labels={"stable": 1}))
        until(lambda: answers(b, "net") == "1")
        b.set_serving("net", replace(b.serving("net"), labels={}, latest=1))
        until(lambda: answers(a, "net") == "2")
        until(lambda: answers(a, "net", "1") == FailedPrecondition.__name__)

        b.delete("net", version=1)
        until(lambda: answers(a, "net", "1") == ModelNotFound.__name__)
        a.delete("net")
        until(lambda: answers(b, "net") == ModelNotFound.__name__)


def test_each_node_has_a_contest_of_its_own_and_follows_the_decision_of_another(pair: Pair) -> None:
    let = partial(let_compete, pair.folder / "c", name="contest", kind=FleetStore,
                  database=make_url(pair.url))  # fmt: skip
    with clients(pair) as both:
        file = small_cnn(pair.folder / "contest.onnx", branches=3)
        both[0].register("contest", file, batch_sizes=[1], planner="sequential", wait=True)

        def have_all_run() -> bool:
            for client in both * 20:
                assert answers(client, "contest") == "1"
            return all(row.runs for client in both for row in contest_of(client).candidates)

        until(lambda: answers(both[1], "contest") == "1")
        let()
        until(lambda: all(len(contest_of(client).candidates) == 3 for client in both))
        until(have_all_run)
        os.kill(pair.a.worker_pid, signal.SIGKILL)
        until(have_all_run)
        assert not any(contest_of(client).decided for client in both)

        let(is_decided=True)
        until(lambda: all(contest_of(client).decided for client in both))
        for client in both:
            first = contest_of(client).candidates[0]
            assert client.infer("contest", {"x": X}).plan_id == first.plan_id


def contest_of(client: Client) -> PlanContest:
    contest = client.model("contest").schedules[0].contest
    assert contest is not None
    return contest


def test_a_replaced_version_of_a_repository_is_replaced_everywhere(pair: Pair) -> None:
    version = pair.repository / "placed" / "1"
    version.mkdir(parents=True)
    shutil.copy(small_cnn(pair.folder / "before.onnx"), version / "model.onnx")
    with clients(pair) as (a, b):
        until(partial(answers_in_all, a, b))
        before = b.infer("placed", {"x": X}).outputs["y"]

        after = small_cnn(pair.folder / "after.onnx", branches=5)
        shutil.copy(after, version / "new")
        (version / "new").rename(version / "model.onnx")

        until(lambda: not np.array_equal(b.infer("placed", {"x": X}).outputs["y"], before))


def answers_in_all(*asked: Client) -> bool:
    return all(answers(client, "placed") == "1" for client in asked)
